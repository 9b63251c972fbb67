package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// An Log file is a chain: each line has, as its last member, prev, the SHA-256
// of the line before it, without its end. Who changes, takes out or puts in a line has to change
// all behind it, so whoever knows a later line's hash sees it. A line that a crash has cut
// short is one like any other.

// maxAuditLine bounds what is read of a line, in bytes: the longest that is written has a
// fraction of it.
const maxAuditLine = 1 << 20

// An File appends lines to a chain. It is safe for concurrent use.
type File struct {
	file *os.File

	mu   sync.Mutex // guards what follows, and the file
	last string     // hash of the last line; "": there is none
	cut  bool       // that line has no end
}

// findLast reads the file for its last line.
func (a *File) findLast() error {
	info, err := a.file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return err
	}
	from := max(0, info.Size()-maxAuditLine)
	tail := make([]byte, info.Size()-from)
	if _, err := a.file.ReadAt(tail, from); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	tail, whole := bytes.CutSuffix(tail, []byte("\n"))
	a.cut = !whole
	a.last = hashOf(tail[bytes.LastIndexByte(tail, '\n')+1:])
	return nil
}

func hashOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// Write appends one line of JSON, which ends with an object's brace and a newline.
func (a *File) Write(line []byte) (int, error) {
	body, ok := bytes.CutSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("}"))
	if !ok {
		return 0, errors.New("a line of the audit is no object")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	linked := fmt.Appendf(nil, `%s,"prev":%q}`, body, a.last)
	text := append(bytes.Clone(linked), '\n')
	if a.cut {
		text = append([]byte("\n"), text...)
	}
	n, err := a.file.Write(text)
	if err != nil {
		a.cut = a.cut || n > 0
		return 0, err
	}
	a.last, a.cut = hashOf(linked), false
	return len(line), nil
}

// Close closes the file.
func (a *File) Close() error { return a.file.Close() }

// An Entry is a line of an audit file.
type Entry struct {
	Line   int
	Fields map[string]any // nil for one that a crash has cut short
	Raw    []byte
}

// Read reads a chain, in the order in which it was written, and calls visit with each line.
// Last is the hash of the line before, "" if the first may follow any; it returns that of the last.
// The error says where the chain is broken.
func Read(r io.Reader, last string, visit func(Entry) error) (string, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxAuditLine)
	for n := 1; lines.Scan(); n++ {
		raw := lines.Bytes()
		e := Entry{Line: n, Raw: raw}
		if json.Unmarshal(raw, &e.Fields) != nil {
			e.Fields = nil
		}
		prev, ok := e.Fields["prev"].(string)
		if e.Fields != nil && (!ok || last != "" && prev != last) {
			return last, fmt.Errorf("line %d does not follow the one before it: one of them was changed, or lines between were taken out", n)
		}
		if err := visit(e); err != nil {
			return last, err
		}
		last = hashOf(raw)
	}
	return last, lines.Err()
}
