package loadgen

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/coder/websocket"
)

// A Writer sends each message in a channel's feed to all clients of the channel. By
// default it calls coder/websocket's Write for each client and message, like a relay
// without optimizations. With together, it makes frames once and writes all waiting
// frames at once, which is the least work that a relay can do.
type Writer struct {
	together bool

	http    *http.Server
	clients net.Listener
	feed    net.Listener
	running sync.WaitGroup
	life    context.Context
	cancel  context.CancelFunc

	mu     sync.Mutex                   // guards the fields below
	queues map[string]map[queue]goneEnd // queues of the clients, by channel
	feeds  map[net.Conn]bool
}

type (
	queue   chan []byte     // messages that wait for a client
	goneEnd <-chan struct{} // closed when the client has gone
)

// channelOf is the parameter in a client's URL with the channel's name.
const channelOf = "channel"

// writerQueue is how many messages may wait for a client. Then the feed waits.
const writerQueue = 256

func newWriter(together bool) (*Writer, error) {
	clients, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	feed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, clients.Close())
	}
	w := &Writer{together: together, clients: clients, feed: feed, queues: map[string]map[queue]goneEnd{}, feeds: map[net.Conn]bool{}}
	w.life, w.cancel = context.WithCancel(context.Background())
	w.http = &http.Server{Handler: http.HandlerFunc(w.serve), ReadHeaderTimeout: dialTime}
	w.running.Go(func() { _ = w.http.Serve(clients) })
	w.running.Go(w.acceptFeeds)
	return w, nil
}

func (w *Writer) close() {
	w.cancel()
	_ = errors.Join(w.http.Close(), w.feed.Close())
	w.mu.Lock()
	for c := range w.feeds {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.running.Wait()
}

// WriterAddresses are the addresses at which a Writer listens.
type WriterAddresses struct {
	URL  string // URL for clients
	Feed string // address for a [Host]
}

// Addresses returns the addresses at which the Writer listens.
func (w *Writer) Addresses(_ None, a *WriterAddresses) error {
	*a = WriterAddresses{URL: "ws://" + w.clients.Addr().String(), Feed: w.feed.Addr().String()}
	return nil
}

// serve serves a client until its connection ends.
func (w *Writer) serve(rw http.ResponseWriter, r *http.Request) {
	gone, cancel := context.WithCancel(w.life)
	defer cancel()
	channel := r.URL.Query().Get(channelOf)
	if w.together {
		c, err := acceptWS(rw, r)
		if err != nil {
			return
		}
		context.AfterFunc(gone, func() { _ = c.Close() })
		w.pass(gone, channel, func() {
			w.running.Go(func() {
				defer cancel()
				for {
					if _, err := c.next(); err != nil {
						return
					}
				}
			})
		}, func(frames []byte) error {
			_, err := c.Write(frames)
			return err
		})
		return
	}
	c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	w.pass(gone, channel, func() { context.AfterFunc(c.CloseRead(w.life), cancel) },
		func(message []byte) error { return c.Write(gone, websocket.MessageText, message) })
}

// pass writes a channel's messages to a client until the client has gone. It calls read
// after it has registered the client. Only then are pings answered, so an answer proves
// that the client is registered.
func (w *Writer) pass(gone context.Context, channel string, read func(), write func([]byte) error) {
	mine := make(queue, writerQueue)
	left := make(chan struct{})
	w.mu.Lock()
	if w.queues[channel] == nil {
		w.queues[channel] = map[queue]goneEnd{}
	}
	w.queues[channel][mine] = left
	w.mu.Unlock()
	read()
	defer func() {
		close(left)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.queues[channel], mine)
	}()
	for {
		select {
		case message := <-mine:
			if write(message) != nil {
				return
			}
		case <-gone.Done():
			return
		}
	}
}

func (w *Writer) acceptFeeds() {
	for {
		c, err := w.feed.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		w.feeds[c] = true
		w.mu.Unlock()
		w.running.Go(func() { w.read(c) })
	}
}

// read sends a feed's messages to the channel's clients. A length stands before each
// message. The first message is the channel's name.
func (w *Writer) read(c net.Conn) {
	defer c.Close()
	from := bufio.NewReaderSize(c, feedBuffer)
	channel, err := readFed(from)
	if err != nil {
		return
	}
	for {
		out, err := readFed(from)
		if err != nil {
			return
		}
		if w.together {
			out = appendFrame(nil, opText, out)
			for whole(from) {
				more, err := readFed(from)
				if err != nil {
					return
				}
				out = appendFrame(out, opText, more)
			}
		}
		w.mu.Lock()
		for queue, left := range w.queues[string(channel)] {
			select {
			case queue <- out:
			case <-left:
			}
		}
		w.mu.Unlock()
	}
}

// feedBuffer is a number of bytes with room for a host's burst.
const feedBuffer = 256 << 10

// readFed reads the next message of a feed.
func readFed(from *bufio.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(from, message)
	return message, err
}

// whole reports whether the buffer contains a complete message.
func whole(from *bufio.Reader) bool {
	if from.Buffered() < 4 {
		return false
	}
	length, err := from.Peek(4)
	return err == nil && from.Buffered() >= 4+int(binary.BigEndian.Uint32(length))
}
