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

// A Writer passes each message in a channel's feed to each client of that channel. By
// default it calls coder/websocket's Write for each, like a relay without
// optimizations. With together, it passes all waiting messages with one write to the
// connection, in frames that were made once: the least work that a relay can do.
type Writer struct {
	together bool

	http    *http.Server
	clients net.Listener
	feed    net.Listener
	running sync.WaitGroup
	life    context.Context
	cancel  context.CancelFunc

	mu     sync.Mutex                   // guards the fields below
	queues map[string]map[queue]goneEnd // by channel
	feeds  map[net.Conn]bool
}

type (
	queue   chan []byte     // of a client
	goneEnd <-chan struct{} // is closed when that is gone
)

// channelOf is the parameter of a client's URL that names its channel.
const channelOf = "channel"

// writerQueue is how many messages wait for a client before the feed waits.
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

// WriterAddresses are where a Writer listens.
type WriterAddresses struct {
	URL  string // for clients
	Feed string // for a [Host]
}

// Addresses returns where the Writer listens.
func (w *Writer) Addresses(_ None, a *WriterAddresses) error {
	*a = WriterAddresses{URL: "ws://" + w.clients.Addr().String(), Feed: w.feed.Addr().String()}
	return nil
}

// serve serves a client.
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

// pass writes a channel's messages to a client until the client is gone. It calls read
// once the client is registered: from then on pings are answered, so a response proves
// that registration is complete.
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

// read passes on a feed: messages with a length prefix, the first of which is the
// channel's name.
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

// feedBuffer has room for a host's burst, in bytes.
const feedBuffer = 256 << 10

// readFed reads a message.
func readFed(from *bufio.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(from, message)
	return message, err
}

// whole reports whether a complete message is buffered.
func whole(from *bufio.Reader) bool {
	if from.Buffered() < 4 {
		return false
	}
	length, err := from.Peek(4)
	return err == nil && from.Buffered() >= 4+int(binary.BigEndian.Uint32(length))
}
