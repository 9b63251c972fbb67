//go:build lockorder && amd64

package lockorder

// goroutine tells this goroutine from all others that run: where the runtime keeps it. Its number
// would take a stack trace, which makes tests many times slower.
func goroutine() uintptr
