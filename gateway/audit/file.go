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

// An audit file is a hash chain: each line ends with the member prev, the SHA-256 of the
// previous line without its newline. To change, remove or insert a line, a forger must
// change all later lines too, which a reader with a later hash detects. A line that a
// crash or a full disk has truncated is part of the chain.

// maxAuditLine is the longest line that Read accepts, in bytes. Written lines are far
// shorter.
const maxAuditLine = 1 << 20

// A File appends lines to a chain. It is safe for concurrent use.
type File struct {
	file *os.File

	mu   sync.Mutex // guards the fields below, and the file
	last string     // hash of the last line; "": no line yet
	cut  bool       // the last line has no newline
}

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

// Write appends one line: a JSON object and a newline.
func (a *File) Write(line []byte) (int, error) {
	body, ok := bytes.CutSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("}"))
	if !ok {
		return 0, errors.New("an audit line is not a JSON object")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cut {
		if _, err := a.file.WriteString("\n"); err != nil {
			return 0, err
		}
		a.cut = false
	}
	text := fmt.Appendf(nil, "%s,\"prev\":%q}\n", body, a.last)
	n, err := a.file.Write(text)
	if n > 0 {
		written, whole := bytes.CutSuffix(text[:n], []byte("\n"))
		a.last, a.cut = hashOf(written), !whole
	}
	if err != nil {
		return 0, err
	}
	return len(line), nil
}

func (a *File) Close() error { return a.file.Close() }

// An Entry is a line of an audit file.
type Entry struct {
	Line   int
	Fields map[string]any // nil for a truncated line
	Raw    []byte
}

// Hash returns the hash by which the next line names this line.
func (e Entry) Hash() string { return hashOf(e.Raw) }

// Read reads a chain, and calls visit for each line. last is the hash of the line before
// the first, or "" if unknown. Read returns the hash of the last line. Its error names
// the line where the chain is broken.
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
			return last, fmt.Errorf("line %d does not follow the previous line: a line was changed, or lines were removed", n)
		}
		if err := visit(e); err != nil {
			return last, err
		}
		last = hashOf(raw)
	}
	return last, lines.Err()
}
