package transcript

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"

	"ahprelay/internal/atomicfile"
)

var table = crc32.MakeTable(crc32.Castagnoli)

// sumLen is the length of a line's checksum and the space after it.
const sumLen = 9

func lineLen(record []byte) int64 { return int64(len(record)) + sumLen + 1 }

func line(record []byte) []byte {
	l := make([]byte, 0, lineLen(record))
	l = fmt.Appendf(l, "%08x ", crc32.Checksum(record, table))
	return append(append(l, record...), '\n')
}

// record returns the record in a line, without its line feed. It returns false if the line
// is damaged.
func record(l []byte) ([]byte, bool) {
	if len(l) < sumLen || l[sumLen-1] != ' ' {
		return nil, false
	}
	return l[sumLen:], bytes.Equal(fmt.Appendf(nil, "%08x", crc32.Checksum(l[sumLen:], table)), l[:sumLen-1])
}

// A Log is an append-only file of records without line feeds. Calls do not overlap.
type Log struct {
	path  string
	limit int64 // bytes
	keeps int   // number of the first records that stay when the log drops its older half
	file  *os.File
	size  int64
}

// OpenLog opens the log in a file, which need not exist, and returns its records, which
// share memory. It moves damaged lines to a file with the suffix .damaged.
func OpenLog(path string, limit int64) (*Log, [][]byte, error) {
	l := &Log{path: path, limit: limit}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	records, damaged := split(data)
	l.size = int64(len(data))
	if len(damaged) == 0 {
		return l, records, nil
	}
	if err := l.setAside(damaged); err != nil {
		return nil, nil, err
	}
	return l, records, l.rewrite(records)
}

// split returns the undamaged records of a file, and the bytes of all damaged lines.
func split(data []byte) (records [][]byte, damaged []byte) {
	for len(data) > 0 {
		l, rest, ended := bytes.Cut(data, []byte("\n"))
		if r, ok := record(l); ok && ended {
			records = append(records, r)
		} else {
			damaged = append(append(damaged, l...), '\n')
		}
		data = rest
	}
	return records, damaged
}

// maxDamaged bounds the file with damaged lines, in bytes. Further damaged lines
// are lost.
const maxDamaged = 16 << 20

func (l *Log) setAside(damaged []byte) error {
	f, err := os.OpenFile(l.path+".damaged", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if size, err := f.Seek(0, io.SeekEnd); err != nil || size+int64(len(damaged)) > maxDamaged {
		return errors.Join(err, f.Close())
	}
	_, err = f.Write(damaged)
	return errors.Join(err, f.Close())
}

// rewrite replaces the file's content.
func (l *Log) rewrite(records [][]byte) error {
	var all bytes.Buffer
	for _, r := range records {
		all.Write(line(r))
	}
	if err := errors.Join(l.Close(), atomicfile.Replace(l.path, all.Bytes(), 0o600)); err != nil {
		return err
	}
	l.size = int64(all.Len())
	return nil
}

// Append adds a record. When Append returns, the record survives a crash of the process. It
// survives a crash of the machine once the function from Sync has returned. If the record
// would exceed the log's limit, Append first drops the log's older half, but never its newest record.
func (l *Log) Append(record []byte) error {
	if bytes.IndexByte(record, '\n') >= 0 {
		return errors.New("a record has a line feed")
	}
	if l.size > 0 && l.size+int64(len(record)) > l.limit {
		if err := l.drop(); err != nil {
			return err
		}
	}
	if err := l.open(); err != nil {
		return err
	}
	n, err := l.file.Write(line(record))
	if err != nil {
		return errors.Join(err, l.file.Truncate(l.size)) // the next record must begin a new line
	}
	l.size += int64(n)
	return nil
}

func (l *Log) open() (err error) {
	if l.file == nil {
		l.file, err = os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	}
	return err
}

// drop removes the older half of the log, except the records that stay, and half of the room that those leave. The newest
// record stays, because the next one may not fit on the disk.
func (l *Log) drop() error {
	data, err := os.ReadFile(l.path)
	if err != nil {
		return err
	}
	records, _ := split(data)
	room := l.limit
	for _, r := range records[:min(l.keeps, len(records))] {
		room -= lineLen(r)
	}
	var kept int64
	first := len(records)
	for first > l.keeps && (first == len(records) || kept+lineLen(records[first-1]) <= room/2) {
		first--
		kept += lineLen(records[first])
	}
	return l.rewrite(slices.Delete(records, min(l.keeps, first), first))
}

// Clear removes all records.
func (l *Log) Clear() error {
	err := l.Close()
	if rm := os.Remove(l.path); rm != nil && !errors.Is(rm, fs.ErrNotExist) {
		return errors.Join(err, rm)
	}
	l.size = 0
	return err
}

// Sync returns a function that flushes the log's file to the disk and closes it. That
// function may run at the same time as other calls: Append opens the file again.
func (l *Log) Sync() func() error {
	f := l.file
	l.file = nil
	if f == nil {
		return func() error { return nil }
	}
	return func() error { return errors.Join(f.Sync(), f.Close()) }
}

// Close closes the file. Append opens it again.
func (l *Log) Close() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
