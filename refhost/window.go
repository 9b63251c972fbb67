package refhost

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf16"
)

// receiveLimits are what one side of a windowed subscription takes. Bytes are
// those of UTF-16: two for each code unit.
type receiveLimits struct {
	WindowBytes         int64 `json:"windowBytes"`
	MaximumFrameBytes   int64 `json:"maximumFrameBytes"`
	MaximumMessageBytes int64 `json:"maximumMessageBytes"`
}

// flowControl says what the host has agreed to.
type flowControl struct {
	ClientReceive receiveLimits `json:"clientReceive"`
	HostReceive   receiveLimits `json:"hostReceive"`
}

// hostReceive is what the host takes on each windowed subscription.
var hostReceive = receiveLimits{WindowBytes: 1 << 20, MaximumFrameBytes: 256 << 10, MaximumMessageBytes: 1 << 20}

// minPiece is the smallest piece of a message that a frame must have room for,
// in code units of its escaped form: any rune fits.
const minPiece = 12

// A window is the state of a channel that is delivered privately: the text of
// each notification in pieces, as channel/frame, and no more text than the
// client has room for.
type window struct {
	channel string
	limits  receiveLimits // the client's
	piece   int           // room for text in a frame, in escaped code units

	open   bool // the answer that has agreed to it is queued
	queue  []windowed
	queued int     // bytes of text in queue; bounded like the send queue
	sent   int64   // UTF-16 bytes of the messages that were sent
	done   int64   // of those that the client has consumed
	ends   []int64 // where the messages end that it has not

	partial  strings.Builder // the message that the client is sending
	received int64           // UTF-16 bytes of the client's whole messages
}

// A windowed entry is a message that goes in frames, or a control that does
// not.
type windowed struct {
	text    string
	control []byte
}

// newWindow returns nil for limits with which nothing can be delivered.
func newWindow(channel string, limits receiveLimits) *window {
	w := &window{channel: channel, limits: limits}
	w.piece = int(min(limits.MaximumFrameBytes, 1<<30)/2) - utf16Units(string(w.frame("", true)))
	if limits.WindowBytes < 1 || limits.MaximumMessageBytes < 1 || w.piece < minPiece {
		return nil
	}
	return w
}

func (w *window) agreed() *flowControl { return &flowControl{w.limits, hostReceive} }

type channelFrame struct {
	Channel string `json:"channel"`
	Data    string `json:"data"`
	Final   bool   `json:"final,omitempty"`
}

func (w *window) frame(data string, final bool) []byte {
	return notificationFrame("channel/frame", encode(channelFrame{w.channel, data, final}))
}

// pushLocked has a notification's text delivered.
func (c *conn) pushLocked(w *window, text string) {
	if int64(utf16Bytes(text)) > w.limits.MaximumMessageBytes {
		c.unsubscribeLocked(w.channel)
		w.queue = []windowed{{control: resetFrame(w.channel)}}
		c.pumpLocked(w)
		return
	}
	w.queue = append(w.queue, windowed{text: text})
	if w.queued += len(text); w.queued > c.host.cfg.SendQueue {
		c.end(errSlow)
		return
	}
	c.pumpLocked(w)
}

// pumpLocked sends what the client has room for. A message may begin while
// there is any room, and is sent whole then.
func (c *conn) pumpLocked(w *window) {
	for w.open && len(w.queue) > 0 {
		next := w.queue[0]
		if next.control == nil && w.sent-w.done >= w.limits.WindowBytes {
			return
		}
		w.queue[0] = windowed{}
		w.queue = w.queue[1:]
		if next.control != nil {
			c.queueLocked(next.control)
			continue
		}
		w.queued -= len(next.text)
		w.sent += int64(utf16Bytes(next.text))
		w.ends = append(w.ends, w.sent)
		for rest := next.text; rest != ""; {
			var piece string
			piece, rest = cutPiece(rest, w.piece)
			c.queueLocked(w.frame(piece, rest == ""))
		}
	}
}

// cutPiece cuts off as much of a text as fits into so many code units of its
// JSON form. Surrogate pairs stay whole.
func cutPiece(text string, room int) (piece, rest string) {
	for i, r := range text {
		if room -= escapedUnits(r); room < 0 {
			return text[:i], text[i:]
		}
	}
	return text, ""
}

// escapedUnits is how many UTF-16 code units a rune takes in a JSON string as
// encode writes it.
func escapedUnits(r rune) int {
	switch {
	case r == '"', r == '\\', r == '\n', r == '\r', r == '\t', r == '\b', r == '\f':
		return 2
	case r < 0x20, r == '\u2028', r == '\u2029', r == '\ufffd':
		return 6
	}
	return max(1, utf16.RuneLen(r))
}

func utf16Units(text string) int {
	n := 0
	for _, r := range text {
		n += max(1, utf16.RuneLen(r))
	}
	return n
}

func utf16Bytes(text string) int { return 2 * utf16Units(text) }

// creditLocked takes note of what a client has consumed: whole messages, in
// order. Older values say nothing new; anything else ends the subscription.
func (c *conn) creditLocked(raw json.RawMessage) {
	credit, err := decodeParams[struct {
		Channel       string `json:"channel"`
		ConsumedBytes int64  `json:"consumedBytes"`
	}](raw)
	w := c.windowOf(credit.Channel)
	if err != nil || w == nil || credit.ConsumedBytes <= w.done {
		return
	}
	i := slices.Index(w.ends, credit.ConsumedBytes)
	if i < 0 {
		c.resetLocked(w.channel)
		return
	}
	w.done, w.ends = w.ends[i], w.ends[i+1:]
	c.pumpLocked(w)
}

func (c *conn) windowOf(channel string) *window {
	if sub := c.subs[channel]; sub != nil {
		return sub.window
	}
	return nil
}

// resetLocked ends a windowed subscription in which something went wrong.
func (c *conn) resetLocked(channel string) {
	c.unsubscribeLocked(channel)
	c.queueLocked(resetFrame(channel))
}

func resetFrame(channel string) []byte {
	return notificationFrame("channel/reset", encode(channelParams{channel}))
}

// frameLocked takes a piece of a client's message, and serves the message when
// it is whole: a dispatchAction on the frame's own channel.
func (c *conn) frameLocked(raw json.RawMessage) {
	frame, err := decodeParams[channelFrame](raw)
	w := c.windowOf(frame.Channel)
	if err != nil || w == nil {
		return
	}
	w.partial.WriteString(frame.Data)
	if frame.Data == "" || int64(w.partial.Len()) > hostReceive.MaximumMessageBytes {
		c.resetLocked(w.channel)
		return
	}
	if !frame.Final {
		return
	}
	text := w.partial.String()
	w.partial.Reset()
	w.received += int64(utf16Bytes(text))
	msg, err := parseMessage([]byte(text))
	var inner channelParams
	if err != nil || msg.method() != "dispatchAction" || json.Unmarshal(msg["params"], &inner) != nil || inner.Channel != w.channel {
		c.resetLocked(w.channel)
		return
	}
	c.host.dispatchLocked(c, msg["params"])
	c.queueLocked(notificationFrame("channel/credit", encode(struct {
		Channel       string `json:"channel"`
		ConsumedBytes int64  `json:"consumedBytes"`
	}{w.channel, w.received})))
}

// openWindowLocked has a subscription begin when the answer that has agreed to
// it is queued: with the channel's state, or what was missed of it.
func (c *conn) openWindowLocked(w *window, bootstrap ...string) {
	for _, text := range bootstrap {
		c.pushLocked(w, text)
	}
	if c.windowOf(w.channel) == w {
		w.queue = append(w.queue, windowed{control: notificationFrame("channel/ready", encode(channelParams{w.channel}))})
	}
	c.opening = append(c.opening, w)
}

// openedLocked sends what the windows that were agreed to have for the client.
func (c *conn) openedLocked() {
	for _, w := range c.opening {
		w.open = true
		c.pumpLocked(w)
	}
	c.opening = nil
}

// snapshotText is the notification with which a windowed channel begins.
func snapshotText(snap *snapshot) string {
	return string(notificationFrame("channel/snapshot", encode(struct {
		Channel  string    `json:"channel"`
		Snapshot *snapshot `json:"snapshot"`
	}{snap.Resource, snap})))
}
