//go:build unix

package hostagent

import (
	"os"
	"syscall"
)

func inodeOf(f *os.File) (uint64, bool) {
	info, err := f.Stat()
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return uint64(stat.Ino), true
}
