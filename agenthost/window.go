package agenthost

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf16"
)

// receiveLimits bound one side of a windowed subscription. Bytes are UTF-16 bytes: two
// for each code unit.
type receiveLimits struct {
	WindowBytes         int64 `json:"windowBytes"`
	MaximumFrameBytes   int64 `json:"maximumFrameBytes"`
	MaximumMessageBytes int64 `json:"maximumMessageBytes"`
}

// flowControl holds the host's accepted limits.
type flowControl struct {
	ClientReceive receiveLimits `json:"clientReceive"`
	HostReceive   receiveLimits `json:"hostReceive"`
}

// hostReceive bounds the host's side of each windowed subscription.
var hostReceive = receiveLimits{WindowBytes: 1 << 20, MaximumFrameBytes: 256 << 10, MaximumMessageBytes: 1 << 20}

// minPiece is the smallest room for text in a frame, in escaped code units: any rune
// fits.
const minPiece = 12

// A window is a channel with private delivery: each notification's text goes out in
// pieces as channel/frame, within the client's credit.
type window struct {
	channel string
	limits  receiveLimits // the client's
	piece   int           // room for text in a frame, in escaped code units

	open   bool // the accepting answer is queued
	queue  []windowed
	queued int     // bytes of text in queue; bounded like the send queue
	sent   int64   // UTF-16 bytes of sent messages
	done   int64   // of these, consumed by the client
	ends   []int64 // ends of the unconsumed messages

	partial  strings.Builder // the client's incomplete message
	received int64           // UTF-16 bytes of the client's complete messages
}

// A windowed entry is a message for frames, or a control without frames.
type windowed struct {
	text    string
	control []byte
}

// newWindow returns nil for limits that permit no delivery.
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

// pushLocked queues a notification's text.
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

// pumpLocked sends within the client's credit. A message may begin while any credit
// remains, and is then sent whole.
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

// cutPiece cuts the longest prefix that fits into room code units of JSON. Surrogate
// pairs stay whole.
func cutPiece(text string, room int) (piece, rest string) {
	for i, r := range text {
		if room -= escapedUnits(r); room < 0 {
			return text[:i], text[i:]
		}
	}
	return text, ""
}

// escapedUnits returns the UTF-16 code units that encode uses for a rune in a JSON
// string.
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

// creditLocked records a client's consumption: whole messages, in order. Older values
// are ignored; any other value ends the subscription.
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

// resetLocked ends a broken windowed subscription.
func (c *conn) resetLocked(channel string) {
	c.unsubscribeLocked(channel)
	c.queueLocked(resetFrame(channel))
}

func resetFrame(channel string) []byte {
	return notificationFrame("channel/reset", encode(channelParams{channel}))
}

// frameLocked adds a piece to a client's message and serves the complete message: a
// dispatchAction on the frame's own channel.
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

// openWindowLocked begins a subscription after its answer is queued: with the
// channel's state, or the missed messages.
func (c *conn) openWindowLocked(w *window, bootstrap ...string) {
	for _, text := range bootstrap {
		c.pushLocked(w, text)
	}
	if c.windowOf(w.channel) == w {
		w.queue = append(w.queue, windowed{control: notificationFrame("channel/ready", encode(channelParams{w.channel}))})
	}
	c.opening = append(c.opening, w)
}

// openedLocked sends the first messages of newly accepted windows.
func (c *conn) openedLocked() {
	for _, w := range c.opening {
		w.open = true
		c.pumpLocked(w)
	}
	c.opening = nil
}

// snapshotText is a windowed channel's first notification.
func snapshotText(snap *snapshot) string {
	return string(notificationFrame("channel/snapshot", encode(struct {
		Channel  string    `json:"channel"`
		Snapshot *snapshot `json:"snapshot"`
	}{snap.Resource, snap})))
}
