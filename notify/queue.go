package notify

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/notice"
)

// A Job is to tell one way of one person of an event.
type Job struct {
	ID        string       `json:"id"` // of the event, the way, and of what is told
	Tenant    string       `json:"tenant"`
	Host      string       `json:"host"`
	Subject   string       `json:"subject"`
	Way       string       `json:"way"`
	Event     notice.Event `json:"event"`
	Withdrawn bool         `json:"withdrawn,omitempty"` // it is told that it is not open any more
	Due       time.Time    `json:"due"`
	Until     time.Time    `json:"until"` // then it is given up
	Tries     int          `json:"tries,omitempty"`
}

// A Queue keeps jobs until they are done. [FileQueue] is one; a cluster wants one that its relays
// share.
type Queue interface {
	// Put adds a job, unless one with its ID is there or was in the last day.
	Put(Job) (added bool)
	// Retry puts a job off.
	Retry(id string, due time.Time, tries int)
	// Done ends a job.
	Done(id string)
	// Told reports whether a job with that ID is done.
	Told(id string) bool
	// Due returns the jobs that are due, and when the next one is; zero: there is none.
	Due(now time.Time) (jobs []Job, next time.Time)
	// Sync returns when what was said is as safe as the Queue keeps it.
	Sync() error
}

// Bounds of a FileQueue.
const (
	maxJobs    = 64 << 10
	maxTold    = 256 << 10
	keepTold   = 24 * time.Hour
	slackLines = 4096 // that may be in the file beyond what is needed
)

// A FileQueue is a Queue in a file to which each change is appended.
type FileQueue struct {
	path string

	mu    sync.Mutex // guards the fields below
	file  *os.File   // nil: in memory only
	out   *bufio.Writer
	err   error // of writing; then nothing is kept any more
	lines int
	jobs  map[string]*Job
	told  map[string]time.Time
}

// A queueLine is one change.
type queueLine struct {
	Put   *Job      `json:"put,omitempty"`
	Retry string    `json:"retry,omitempty"`
	Due   time.Time `json:"due,omitzero"`
	Tries int       `json:"tries,omitempty"`
	Done  string    `json:"done,omitempty"`
	At    time.Time `json:"at,omitzero"`
}

// OpenQueue reads a file, which need not be there; "" keeps jobs in memory. The
// file is to be nobody else's. Its last line may be cut, by a crash: nothing that
// was confirmed is in it.
func OpenQueue(path string) (*FileQueue, error) {
	q := &FileQueue{path: path, jobs: map[string]*Job{}, told: map[string]time.Time{}}
	if path == "" {
		return q, nil
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("events to be told: %w", err)
	}
	for n := 1; ; n++ {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			break
		}
		var l queueLine
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, fmt.Errorf("events to be told: %s, line %d: %w; remove it to begin anew", path, n, err)
		}
		q.apply(&l)
		data = rest
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q, q.compactLocked()
}

// apply takes a change that was made.
func (q *FileQueue) apply(l *queueLine) {
	switch {
	case l.Put != nil:
		job := *l.Put
		q.jobs[job.ID] = &job
	case l.Retry != "":
		if job, ok := q.jobs[l.Retry]; ok {
			job.Due, job.Tries = l.Due, l.Tries
		}
	case l.Done != "":
		delete(q.jobs, l.Done)
		q.told[l.Done] = l.At
	}
}

// compactLocked replaces the file by one of what is needed.
func (q *FileQueue) compactLocked() error {
	for id, at := range q.told {
		if time.Since(at) > keepTold {
			delete(q.told, id)
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for id, at := range q.told {
		_ = e.Encode(queueLine{Done: id, At: at}) // no field can fail, as below
	}
	for _, job := range q.jobs {
		_ = e.Encode(queueLine{Put: job})
	}
	if err := auth.ReplaceFile(q.path, b.Bytes(), 0o600); err != nil {
		return fmt.Errorf("events to be told: %w", err)
	}
	if q.file != nil {
		_ = q.file.Close() // it is another file's now
	}
	file, err := os.OpenFile(q.path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("events to be told: %w", err)
	}
	q.file, q.out, q.lines = file, bufio.NewWriter(file), 0
	return nil
}

// noteLocked makes a change.
func (q *FileQueue) noteLocked(l queueLine) {
	q.apply(&l)
	if q.file == nil || q.err != nil {
		return
	}
	data, _ := json.Marshal(l) // no field can fail
	if _, q.err = q.out.Write(append(data, '\n')); q.err != nil {
		return
	}
	if q.lines++; q.lines > slackLines+4*len(q.jobs)+len(q.told) {
		q.err = q.compactLocked()
	}
}

// Put implements [Queue].
func (q *FileQueue) Put(job Job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, there := q.jobs[job.ID]
	_, told := q.told[job.ID]
	if there || told || len(q.jobs) >= maxJobs {
		return false
	}
	q.noteLocked(queueLine{Put: &job})
	return true
}

// Retry implements [Queue].
func (q *FileQueue) Retry(id string, due time.Time, tries int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, there := q.jobs[id]; there {
		q.noteLocked(queueLine{Retry: id, Due: due, Tries: tries})
	}
}

// Done implements [Queue].
func (q *FileQueue) Done(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.told) >= maxTold {
		for other := range q.told { // any of them: it is a day old, or nearly
			delete(q.told, other)
			break
		}
	}
	q.noteLocked(queueLine{Done: id, At: time.Now().UTC()})
}

// Told implements [Queue].
func (q *FileQueue) Told(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, told := q.told[id]
	return told
}

// Due implements [Queue].
func (q *FileQueue) Due(now time.Time) (jobs []Job, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, job := range q.jobs {
		if !job.Due.After(now) {
			jobs = append(jobs, *job)
		} else if next.IsZero() || job.Due.Before(next) {
			next = job.Due
		}
	}
	return jobs, next
}

// Sync implements [Queue].
func (q *FileQueue) Sync() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.file == nil || q.err != nil {
		return q.err
	}
	if q.err = q.out.Flush(); q.err == nil {
		q.err = q.file.Sync()
	}
	return q.err
}

// Close keeps what was said, and closes the file.
func (q *FileQueue) Close() error {
	err := q.Sync()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.file == nil {
		return err
	}
	file := io.Closer(q.file)
	q.file = nil
	return errors.Join(err, file.Close())
}
