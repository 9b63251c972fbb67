// Package faults breaks the networks and processes between clients and their
// host, one fault at a time and under load, and says what the clients saw of
// it: the table in docs/faults.md.
package faults
