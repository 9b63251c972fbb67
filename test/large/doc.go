// Package large tests messages of 32 MiB beside small messages, messages of 100 MiB,
// and several at once, with the real programs as processes.
package large
