//go:build !linux && !darwin

package hostagent

// bootID returns "": machines cannot be distinguished on this system.
func bootID() string { return "" }
