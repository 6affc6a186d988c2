"""A run inside other software: MCP clients, LangChain and LlamaIndex."""
