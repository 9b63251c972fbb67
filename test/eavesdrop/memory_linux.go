package eavesdrop

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A Dump is a copy of all memory regions that a process may write.
type Dump [][]byte

// DumpMemory stops a process, reads its memory and lets it continue. It leaves out
// read-only regions, because they contain only the program, and here the program
// contains the test's texts.
func DumpMemory(t testing.TB, pid int) (d Dump) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to uint64
		var mode string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &mode); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(mode, "rw") {
			continue
		}
		d = append(d, usedPages(mem, int64(from), int64(to))...)
	}
	return d
}

// usedPages reads a region, and leaves out pages with zeros only.
func usedPages(mem io.ReaderAt, from, to int64) (d Dump) {
	const page = 4 << 10
	empty := make([]byte, page)
	chunk := make([]byte, 1<<20)
	var used []byte
	for ; from < to; from += int64(len(chunk)) {
		part := chunk[:min(int64(len(chunk)), to-from)]
		n, _ := mem.ReadAt(part, from) // the region of a device cannot be read
		for at := 0; at < n; at += page {
			if p := part[at:min(at+page, n)]; !bytes.Equal(p, empty[:len(p)]) {
				used = append(used, p...)
			} else if len(used) > 0 {
				d, used = append(d, used), nil
			}
		}
	}
	if len(used) > 0 {
		d = append(d, used)
	}
	return d
}

// Size returns the number of bytes in the dump.
func (d Dump) Size() (n int) {
	for _, region := range d {
		n += len(region)
	}
	return n
}

// A Piece is 16 bytes from a text.
type Piece [16]byte

// PiecesOf returns all pieces of the texts.
func PiecesOf(texts []string) map[Piece]bool {
	all := map[Piece]bool{}
	for _, text := range texts {
		for i := range len(text) - 15 {
			all[Piece([]byte(text[i:]))] = true
		}
	}
	return all
}

// Finds returns the pieces that occur in the dump. The race detector does not check it,
// because that would take a minute for a loop that shares nothing.
//
//go:norace
func (d Dump) Finds(pieces map[Piece]bool) map[Piece]bool {
	var begins [1 << 16]bool // by the first two bytes
	for p := range pieces {
		begins[int(p[0])<<8|int(p[1])] = true
	}
	list := map[Piece]bool{}
	for _, region := range d {
		for i := range max(len(region)-15, 0) {
			if begins[int(region[i])<<8|int(region[i+1])] {
				if p := Piece(region[i:]); pieces[p] {
					list[p] = true
				}
			}
		}
	}
	return list
}

// Some returns at most 20 pieces, as texts for a message.
func Some(pieces map[Piece]bool) (list []string) {
	for p := range pieces {
		if list = append(list, string(p[:])); len(list) == 20 {
			break
		}
	}
	slices.Sort(list)
	return list
}
