"""gate: measure two arms and judge. Command lines, HTTP and files only; imports no torch, no vllm, no engine."""
