// Package large tests messages of 32 MiB beside small ones, messages of 100 MiB, and
// several at once, through processes that are what users run.
package large
