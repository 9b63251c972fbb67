package memory

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// ReleaseCode frees the pages of the program's file which the process has used so far.
// Starting a program uses most pages, but an idle program needs few. The kernel loads
// a page again from its cache when it is used next. If ReleaseCode fails, pages stay
// in memory.
func ReleaseCode() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer smaps.Close()
	var from, to uintptr // the mapping to which the current lines belong; empty if it is not the program's file
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		line := lines.Text()
		if name, size, isField := strings.Cut(line, ":"); isField && !strings.Contains(name, " ") {
			// A mapping without modified pages equals its file.
			if name == "Anonymous" && to > from && strings.TrimSpace(size) == "0 kB" {
				_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, from, to-from, syscall.MADV_DONTNEED)
			}
			continue
		}
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || strings.Contains(mode, "w") || !strings.HasSuffix(line, " "+exe) {
			from, to = 0, 0
		}
	}
}
