package hostagent

import (
	"os"
	"strings"
)

// bootID identifies the current boot of this machine's kernel, which all its
// containers share.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
