//go:build !linux && !darwin

package hostagent

// bootID returns "": boots cannot be distinguished on this system.
func bootID() string { return "" }
