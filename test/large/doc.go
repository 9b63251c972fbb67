// Package large tests messages of 32 MiB beside small ones, through processes
// that are what users run.
package large
