// Package orphan lets a process wait with little memory until its parent has ended. It
// waits in its init function, before most other packages of the program are initialized.
// Go initializes packages in the order of their paths, each after its imports. So this
// package imports little, and its path sorts before those of libraries.
package orphan

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"syscall"

	"ahprelay/internal/memory"
)

// Command is the first argument of a waiting process. Its standard input is a pipe from
// its parent; each line of text replaces the previous one.
const Command = "sentinel"

// Farewell is a line after which the process ends at once.
const Farewell = `{"farewell":true}`

// maxLine bounds a line. The rest of a longer line is dropped.
const maxLine = 512 << 10

var input []byte

func init() {
	if len(os.Args) < 2 || os.Args[1] != Command {
		return
	}
	if stat, err := os.Stdin.Stat(); err != nil || stat.Mode()&os.ModeNamedPipe == 0 {
		return // started by hand
	}
	Outlive()
	memory.ReleaseCode()
	line, farewell := lastLine(os.Stdin)
	if farewell {
		os.Exit(0)
	}
	input = line
}

// Outlive makes the process ignore the signals sent to all processes of a session or
// service.
func Outlive() { signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP) }

// Input returns the parent's last line after the parent has ended. If the process was
// started by hand, it returns standard input.
func Input() io.Reader {
	if input == nil {
		return os.Stdin
	}
	return bytes.NewReader(input)
}

// lastLine returns the last complete line when the input ends, or the whole input if
// there is no line break. After Farewell it returns at once.
func lastLine(in io.Reader) (line []byte, farewell bool) {
	line, rest := []byte{}, make([]byte, 0, 4<<10)
	whole := false
	for {
		if len(rest) == cap(rest) {
			rest = append(rest, 0)[:len(rest)]
		}
		n, err := in.Read(rest[len(rest):cap(rest)])
		rest = rest[:len(rest)+n]
		for {
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				break
			}
			line, whole = append(line[:0], rest[:min(end, maxLine)]...), true
			rest = append(rest[:0], rest[end+1:]...)
			if string(line) == Farewell {
				return nil, true
			}
		}
		rest = rest[:min(len(rest), maxLine)]
		if err != nil {
			if !whole {
				line = rest
			}
			return line, false
		}
	}
}
