package audit

import (
	"sync"
	"time"
)

// keptLines is the number of audit lines kept in memory for all tenants, and shownLines
// the number shown to an owner.
const (
	keptLines  = 4096
	shownLines = 200
)

// A ShownLine is an audit line as shown to an owner. Its fields are those of [Line].
type ShownLine struct {
	At      time.Time `json:"at"`
	Event   string    `json:"event"`
	Host    string    `json:"host,omitempty"`
	Subject string    `json:"subject,omitempty"`
	Token   string    `json:"token,omitempty"`
	Device  string    `json:"device,omitempty"`
	Address string    `json:"address,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Detail  string    `json:"detail,omitempty"`
	Count   int       `json:"count,omitempty"`
}

// latest holds the last audit lines.
type latest struct {
	since time.Time

	mu    sync.Mutex // guards the fields below
	lines []keptLine // with keptLines lines a ring buffer, with the oldest line at next
	next  int
}

type keptLine struct {
	at time.Time
	Line
}

func (l *latest) add(line Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) < keptLines {
		l.lines = append(l.lines, keptLine{time.Now().UTC(), line})
		return
	}
	l.lines[l.next] = keptLine{time.Now().UTC(), line}
	l.next = (l.next + 1) % keptLines
}

// of returns a tenant's lines, latest first.
func (l *latest) of(tenant string) (shown []ShownLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.lines {
		line := &l.lines[(l.next+len(l.lines)-1-i)%len(l.lines)]
		if line.Tenant != tenant {
			continue
		}
		shown = append(shown, ShownLine{line.at, line.Event, line.Host, line.Subject, line.Token, line.Device, line.Address, line.Reason, line.Detail, line.Count})
		if len(shown) == shownLines {
			break
		}
	}
	return shown
}

// Since returns the time at which the Log began.
func (a *Log) Since() time.Time { return a.latest.since }

// Latest returns a tenant's last lines, latest first.
func (a *Log) Latest(tenant string) []ShownLine { return a.latest.of(tenant) }
