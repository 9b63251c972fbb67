package memory

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// ReleaseCode unmaps the pages of the program's file that the process has used so far.
// The start of a program uses most pages, and a waiting program few. The kernel maps a
// page again from its cache when the process next uses it. After an error, pages stay.
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
	var from, to uintptr // the mapping of the current lines; empty unless it is the program's file
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		line := lines.Text()
		if name, size, isField := strings.Cut(line, ":"); isField && !strings.Contains(name, " ") {
			// A mapping without own pages equals its file.
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
