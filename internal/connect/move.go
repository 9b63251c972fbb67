package connect

import (
	"errors"
	"net"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/broker/resume"
)

// A relay that stops gracefully closes the connections of clients with 1001. The relay's
// host-agent keeps the connection to the host if the reason is [resume.MoveReason]. The
// upstream then continues on the restarted relay, or on a different one: the reader closes
// the previous leg, so everything that was sent has arrived, and dials the next leg with the
// previous one's ticket. A message whose Write has failed on the previous leg is not complete at
// the relay, and is sent again on the next leg. A leg that was lost otherwise is not
// continued.

// errLostMove reports a relay that does not continue the connection.
var errLostMove = &Refusal{ahp.CloseResync, "resync: the next relay does not continue this connection"}

// moveMost is the longest pause between attempts to reach a relay.
const moveMost = 2 * time.Second

// present returns the present leg's WebSocket. It waits while the connection moves.
func (u *upstream) present() (*websocket.Conn, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.moving && !u.over {
		u.waitLocked(u.life.Done())
	}
	if u.over {
		return nil, net.ErrClosed
	}
	return u.ws, nil
}

// current returns the present leg's WebSocket, and whether the connection moves.
func (u *upstream) current() (ws *websocket.Conn, moving bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ws, u.moving
}

// finish ends all moves, and returns the last leg.
func (u *upstream) finish() leg {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	u.changeLocked()
	return u.leg
}

// waitLocked waits for a change, without the lock.
func (u *upstream) waitLocked(done <-chan struct{}) {
	changed := u.changed
	u.mu.Unlock()
	defer u.mu.Lock()
	select {
	case <-changed:
	case <-done:
		// end sets over
		<-changed
	}
}

// changeLocked wakes all waiting calls.
func (u *upstream) changeLocked() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// movesFrom reports, after a failed Write, whether the connection has moved from that
// WebSocket. It waits for the reader, which knows the reason.
func (u *upstream) movesFrom(ws *websocket.Conn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.ws == ws && !u.over {
		u.waitLocked(u.life.Done())
	}
	return u.ws != ws && !u.over
}

// move continues the connection on a new leg, if the reason for the previous one's end
// allows it. Otherwise it returns the reason for the end. The reader calls it.
func (u *upstream) move(reason error) error {
	var closed *Closed
	movable := errors.As(reason, &closed) && closed.Code == ahp.CloseShuttingDown && closed.Reason == resume.MoveReason && u.ticket != ""
	u.mu.Lock()
	u.moving = movable
	u.over = u.over || !movable
	over := u.over
	u.changeLocked()
	u.mu.Unlock()
	if over {
		return reason
	}
	u.leg.end() // waits until the relay has everything
	next, err := u.next()
	u.mu.Lock()
	u.moving = false
	over = u.over
	u.over = over || err != nil
	if !u.over {
		u.leg = *next
	}
	u.changeLocked()
	u.mu.Unlock()
	switch {
	case err != nil:
		return err
	case over: // meanwhile
		next.end()
		return reason
	}
	return nil
}

// next dials a relay until it continues the connection.
func (u *upstream) next() (*leg, error) {
	until := time.Now().Add(resume.DefaultTime)
	for pause := dialAgain; ; pause = min(2*pause, moveMost) {
		next, err := u.relay.dialWS(u.life, u.host, u.level, u.seal != nil, u.ticket)
		var refusal *Refusal
		switch {
		case err == nil:
			return next, nil
		case errors.As(err, &refusal):
			return nil, err
		case time.Now().Add(pause).After(until):
			return nil, &Refusal{ahp.CloseResync, "resync: no relay has come back: " + err.Error()}
		}
		select {
		case <-u.life.Done():
			return nil, net.ErrClosed
		case <-time.After(pause):
		}
	}
}
