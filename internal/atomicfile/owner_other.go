//go:build !unix

package atomicfile

// KeepOwner does nothing: new files belong to their directory's user by inheritance.
func KeepOwner(string, ...string) error { return nil }
