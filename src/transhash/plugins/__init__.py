"""A run inside other software: MCP clients, LangChain, LlamaIndex and scikit-learn."""
