// Package transcript stores sessions on disk, so they survive the end of the
// host's process and of its machine. It does not interpret the records.
//
// # Files
//
// A session has a directory, named by a hash of the session's name:
//
//	meta          the session's description; the last record counts
//	<chat>.turns  a record for each completed turn
//	<chat>.live   the actions of the turn in progress
//
// Beside the directories, the file removed lists the names of removed sessions.
//
// A file has one record per line: a CRC-32C in hexadecimal, a space, the record. Files
// are only appended to, so a crash can damage only the last line. OpenLog moves a line
// with a wrong checksum, or without its line feed, to a file with the suffix .damaged,
// and uses the other lines. A completed turn is appended to the turns before its
// actions are removed. After a crash in between, the caller finds the turn in both
// files.
//
// # Why files
//
// A host appends small records, reads a session as a whole, and never searches. Such
// files need one write for each record, and a person can read and copy them. SQLite
// would add transactions, which single appends do not need, and about six megabytes to
// the program.
//
// # Bounds
//
// A log drops its older half at [MaxTurns] or [MaxLive]. The first action of a turn, which has
// the person's message, stays. Sessions returns at most
// [MaxSessions].
package transcript

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The bounds of a store.
const (
	MaxSessions = 1000
	MaxTurns    = 64 << 20 // bytes of a chat's turns
	MaxLive     = 64 << 20 // bytes of a turn's actions

	maxMeta    = 256 << 10 // bytes of a session's descriptions, old and new
	maxRemoved = 1 << 20   // bytes of names
)

// A Store is a directory of sessions. One process uses it at a time.
type Store struct{ dir string }

// Open returns the store in a directory, which it makes if needed.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Store{dir}, nil
}

// Removed returns the names of removed sessions, the latest last.
func (s *Store) Removed() ([]string, error) {
	log, records, err := OpenLog(filepath.Join(s.dir, "removed"), maxRemoved)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range records {
		names = append(names, string(r))
	}
	return names, log.Close()
}

// Remember records the name of a removed session.
func (s *Store) Remember(name string) error {
	log, _, err := OpenLog(filepath.Join(s.dir, "removed"), maxRemoved)
	if err != nil {
		return err
	}
	return errors.Join(log.Append([]byte(name)), log.Close())
}

// A Session is a session's directory. Calls do not overlap.
type Session struct {
	dir  string
	meta *Log
	Meta []byte // the latest description; nil for a new session
}

// Sessions returns the stored sessions. It leaves out sessions whose description is
// damaged; their files stay on the disk.
func (s *Store) Sessions() ([]*Session, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var sessions []*Session
	var failed error
	for _, e := range entries {
		if !e.IsDir() || len(sessions) >= MaxSessions {
			continue
		}
		x, err := openSession(filepath.Join(s.dir, e.Name()))
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("session %s: %w", e.Name(), err))
		} else if x.Meta != nil {
			sessions = append(sessions, x)
		}
	}
	return sessions, failed
}

// Session returns the directory of a session.
func (s *Store) Session(name string) (*Session, error) {
	dir := filepath.Join(s.dir, hashed(name))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return openSession(dir)
}

func hashed(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:12])
}

func openSession(dir string) (*Session, error) {
	meta, records, err := OpenLog(filepath.Join(dir, "meta"), maxMeta)
	if err != nil {
		return nil, err
	}
	x := &Session{dir: dir, meta: meta}
	if len(records) > 0 {
		x.Meta = slices.Clone(records[len(records)-1])
	}
	return x, nil
}

// Describe replaces the session's description.
func (x *Session) Describe(meta []byte) error {
	x.Meta = meta
	return errors.Join(x.meta.Append(meta), x.meta.Close())
}

// Turns opens the log of a chat's completed turns.
func (x *Session) Turns(chat string) (*Log, [][]byte, error) {
	return OpenLog(filepath.Join(x.dir, hashed(chat)+".turns"), MaxTurns)
}

// Live opens the log of the actions in a chat's turn in progress. Its first action always stays.
func (x *Session) Live(chat string) (*Log, [][]byte, error) {
	log, records, err := OpenLog(filepath.Join(x.dir, hashed(chat)+".live"), MaxLive)
	if err == nil {
		log.keeps = 1
	}
	return log, records, err
}

// HasLive reports whether a chat has a turn in progress.
func (x *Session) HasLive(chat string) bool {
	info, err := os.Stat(filepath.Join(x.dir, hashed(chat)+".live"))
	return err == nil && info.Size() > 0
}

// RemoveChat removes a chat's files.
func (x *Session) RemoveChat(chat string) error {
	var failed error
	for _, suffix := range []string{".turns", ".live", ".turns.damaged", ".live.damaged"} {
		if err := os.Remove(filepath.Join(x.dir, hashed(chat)+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// MoveChat moves a chat's files to a different session.
func (x *Session) MoveChat(chat string, to *Session) error {
	for _, suffix := range []string{".turns", ".live"} {
		name := hashed(chat) + suffix
		if err := os.Rename(filepath.Join(x.dir, name), filepath.Join(to.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Remove removes the session.
func (x *Session) Remove() error {
	if err := x.meta.Close(); err != nil {
		return err
	}
	if strings.HasPrefix(filepath.Base(x.dir), ".") {
		return fmt.Errorf("%s is not a session", x.dir)
	}
	return os.RemoveAll(x.dir)
}
