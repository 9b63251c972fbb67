package loadgen

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/coder/websocket"
)

// A Writer passes each message of its feed to each client, with one Write of
// coder/websocket for each: what a relay that takes no trouble does.
type Writer struct {
	http    *http.Server
	clients net.Listener
	feed    net.Listener
	running sync.WaitGroup
	life    context.Context
	cancel  context.CancelFunc

	mu     sync.Mutex                      // guards the fields below
	queues map[chan []byte]<-chan struct{} // and what is closed when their clients are gone
	feeds  map[net.Conn]bool
}

// writerQueue is how many messages wait for a client before the feed waits.
const writerQueue = 256

func newWriter() (*Writer, error) {
	clients, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	feed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, clients.Close())
	}
	w := &Writer{clients: clients, feed: feed, queues: map[chan []byte]<-chan struct{}{}, feeds: map[net.Conn]bool{}}
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

func (w *Writer) serve(rw http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	queue := make(chan []byte, writerQueue)
	left := make(chan struct{})
	w.mu.Lock()
	w.queues[queue] = left
	w.mu.Unlock()
	gone := c.CloseRead(w.life) // answers pings: the client is in then
	defer func() {
		close(left)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.queues, queue)
	}()
	for {
		select {
		case message := <-queue:
			if c.Write(gone, websocket.MessageText, message) != nil {
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

// read passes on what comes: messages, each with its length before it.
func (w *Writer) read(c net.Conn) {
	defer c.Close()
	var length [4]byte
	for {
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		message := make([]byte, binary.BigEndian.Uint32(length[:]))
		if _, err := io.ReadFull(c, message); err != nil {
			return
		}
		w.mu.Lock()
		for queue, left := range w.queues {
			select {
			case queue <- message:
			case <-left:
			}
		}
		w.mu.Unlock()
	}
}
