package connect

import (
	"errors"
	"net"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/broker/resume"
	"ahprelay/internal/clock"
)

// A relay which stops gracefully closes clients' connections with 1001. If the reason is
// [resume.MoveReason], the host-agent keeps the connection to the host, and the upstream
// continues it at the restarted relay or at a different one. For this, the reader first closes
// the previous leg, so all sent messages have arrived, and then dials a new leg with the
// previous leg's ticket. If a Write has failed on the previous leg, the relay has not received
// that message completely, and it is sent again on the new leg. A leg which ends in any other
// way is not continued.

// errLostMove reports that the next relay cannot continue the connection.
var errLostMove = &Refusal{ahp.CloseResync, "resync: the next relay does not continue this connection"}

// moveMost is the longest pause between attempts to reach a relay.
const moveMost = 2 * time.Second

// present returns the current leg's WebSocket. During a move it waits.
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

// current returns the current leg's WebSocket, and whether a move is in progress.
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

// waitLocked unlocks the mutex and waits for a change.
func (u *upstream) waitLocked(done <-chan struct{}) {
	changed := u.changed
	u.mu.Unlock()
	defer u.mu.Lock()
	select {
	case <-changed:
	case <-done:
		// upstream.end then sets over
		<-changed
	}
}

// changeLocked wakes all callers of waitLocked.
func (u *upstream) changeLocked() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// movesFrom reports, after a Write has failed on a WebSocket, whether the connection has moved
// to a new one. It waits for the reader, which learns why the leg has ended.
func (u *upstream) movesFrom(ws *websocket.Conn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.ws == ws && !u.over {
		u.waitLocked(u.life.Done())
	}
	return u.ws != ws && !u.over
}

// move continues the connection on a new leg if the relay has announced a move. Otherwise it
// returns the reason of the end. Only the reader calls it.
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
	u.leg.end() // waits until the relay has received all sent messages
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
	case over: // the connection was ended meanwhile
		next.end()
		return reason
	}
	return nil
}

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
		if !clock.Sleep(u.life, pause) {
			return nil, net.ErrClosed
		}
	}
}
