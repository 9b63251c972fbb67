// Package ahprelay is a relay for the Agent Host Protocol. See README.md for
// what it does, and ARCHITECTURE.md for how.
package ahprelay
