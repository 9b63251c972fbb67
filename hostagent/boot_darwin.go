package hostagent

import "golang.org/x/sys/unix"

// bootID identifies the current boot of this machine's kernel.
func bootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
}
