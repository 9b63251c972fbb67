// Package faults breaks networks and processes between clients and their host, one
// fault at a time and under load, and reports the effects at the clients: the table in
// docs/faults.md.
package faults
