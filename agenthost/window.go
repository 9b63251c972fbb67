package agenthost

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf16"
)

// receiveLimits are the limits of one receiver in a windowed subscription. Bytes count
// UTF-16: two for each code unit.
type receiveLimits struct {
	WindowBytes         int64 `json:"windowBytes"`
	MaximumFrameBytes   int64 `json:"maximumFrameBytes"`
	MaximumMessageBytes int64 `json:"maximumMessageBytes"`
}

// flowControl holds the accepted limits of both receivers.
type flowControl struct {
	ClientReceive receiveLimits `json:"clientReceive"`
	HostReceive   receiveLimits `json:"hostReceive"`
}

// hostReceive are the host's limits in each windowed subscription.
var hostReceive = receiveLimits{WindowBytes: 1 << 20, MaximumFrameBytes: 256 << 10, MaximumMessageBytes: 1 << 20}

// minPiece is the smallest room for text in a frame, in escaped code units. Any
// character fits.
const minPiece = 12

// A window is a channel that is delivered with flow control: the text of each
// notification is sent in pieces as channel/frame, as far as the client's credit
// permits.
type window struct {
	channel string
	limits  receiveLimits // the client's
	piece   int           // room for text in a frame, in escaped code units

	open   bool // the answer that accepts the window is queued
	queue  []windowed
	queued int     // bytes of text in queue; bounded like the send queue
	sent   int64   // UTF-16 bytes of sent messages
	done   int64   // bytes of sent messages that the client has consumed
	ends   []int64 // ends of the messages that the client has not consumed

	partial  strings.Builder // the client's message so far
	size     int64           // UTF-16 bytes of partial
	received int64           // UTF-16 bytes of the client's complete messages
}

// A windowed entry is a message that is sent in frames, or a control message that is
// not.
type windowed struct {
	text    string
	control []byte
}

// newWindow returns nil if the limits are too small for any delivery.
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

// pushLocked queues a notification's text. A text above the client's maximum ends
// the subscription.
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

// pumpLocked sends messages as far as the client's credit permits. A message may begin
// while any credit is left, and is then sent to its end.
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

// cutPiece cuts off the longest beginning of a text that fits into room code units of
// JSON. It does not split surrogate pairs.
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

// creditLocked records how much the client has consumed: whole messages, in order. A value
// that is not above the last one is ignored. A value inside a message ends the subscription.
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

// resetLocked ends a windowed subscription after an error.
func (c *conn) resetLocked(channel string) {
	c.unsubscribeLocked(channel)
	c.queueLocked(resetFrame(channel))
}

func resetFrame(channel string) []byte {
	return notificationFrame("channel/reset", encode(channelParams{channel}))
}

// frameLocked adds a piece to a client's message, and handles the complete
// message: a dispatchAction for the frame's own channel.
func (c *conn) frameLocked(raw json.RawMessage) {
	frame, err := decodeParams[channelFrame](raw)
	w := c.windowOf(frame.Channel)
	if err != nil || w == nil {
		return
	}
	w.partial.WriteString(frame.Data)
	w.size += int64(utf16Bytes(frame.Data))
	if frame.Data == "" || w.size > hostReceive.MaximumMessageBytes {
		c.resetLocked(w.channel)
		return
	}
	if !frame.Final {
		return
	}
	text := w.partial.String()
	w.partial.Reset()
	w.received += w.size
	w.size = 0
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

// openWindowLocked prepares the delivery, which openedLocked begins: first bootstrap,
// the channel's state or the missed messages, then channel/ready.
func (c *conn) openWindowLocked(w *window, bootstrap ...string) {
	for _, text := range bootstrap {
		c.pushLocked(w, text)
	}
	if c.windowOf(w.channel) == w {
		w.queue = append(w.queue, windowed{control: notificationFrame("channel/ready", encode(channelParams{w.channel}))})
	}
	c.opening = append(c.opening, w)
}

// openedLocked begins the delivery on new windows. The caller has queued the
// answer.
func (c *conn) openedLocked() {
	for _, w := range c.opening {
		w.open = true
		c.pumpLocked(w)
	}
	c.opening = nil
}

// snapshotText returns the first notification on a windowed channel.
func snapshotText(snap *snapshot) string {
	return string(notificationFrame("channel/snapshot", encode(struct {
		Channel  string    `json:"channel"`
		Snapshot *snapshot `json:"snapshot"`
	}{snap.Resource, snap})))
}
