"""The tasks that are scored: short ones by name, long ones by kind and size in tokens."""
SHORT = ["add", "sub", "mul", "add3", "word_problem", "compare", "count", "reverse", "spell", "letter_count", "sort", "list", "copy", "repeat", "capital", "facts", "talk", "memory", "define",
         "tool_one", "tool_two", "tool_generic", "tool_result", "tool_none", "tool_nofit", "tool_absent", "story", "describe"]
LONG = [("passkey", 256), ("passkey", 1024), ("passkey", 2048), ("passkey", 4096), ("passkey", 8192), ("passkey", 16384), ("needles", 1024), ("needles", 4096), ("needles", 8192)]
