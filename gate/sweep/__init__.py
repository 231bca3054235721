"""The flow of `gate sweep`: prefill and decode rates over prompt length and depth, as llama-bench names them."""
