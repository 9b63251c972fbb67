//go:build !unix

package idle

const waits = false

func readable(uintptr) bool { return true }
