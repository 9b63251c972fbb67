package wire

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// A lateConn accepts no bytes before it opens. Each Write before that ends late after its deadline.
type lateConn struct {
	net.Conn
	opens    time.Time
	late     time.Duration
	deadline time.Time
}

func (c *lateConn) SetWriteDeadline(t time.Time) error {
	c.deadline = t
	return nil
}

func (c *lateConn) Write(p []byte) (int, error) {
	if !time.Now().Before(c.opens) {
		return len(p), nil
	}
	time.Sleep(time.Until(c.deadline) + c.late)
	return 0, os.ErrDeadlineExceeded
}

// TestTimeStoodStillIsNoStall writes to a peer that reads again after a minute. While this process
// stands still for that minute, the Write must go on. While it runs, the Write must fail after the 40 s
// without progress, and at most twice the delay later if each look is late.
func TestTimeStoodStillIsNoStall(t *testing.T) {
	for _, test := range []struct {
		name        string
		late        time.Duration
		fails       bool
		least, most time.Duration
	}{
		{"stands still", time.Minute, false, time.Minute, 61 * time.Second},
		{"runs", 0, true, 40 * time.Second, 41 * time.Second},
		{"always late", 5 * time.Second, true, 40 * time.Second, 51 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				conn, _ := paced(&lateConn{opens: start.Add(time.Minute), late: test.late}, 40*time.Second)
				_, err := conn.Write([]byte("x"))
				took := time.Since(start)
				if failed := errors.Is(err, os.ErrDeadlineExceeded); failed != test.fails || took < test.least || took > test.most {
					t.Errorf("Write = %v after %v; want a failure: %v, after %v to %v", err, took, test.fails, test.least, test.most)
				}
			})
		})
	}
}
