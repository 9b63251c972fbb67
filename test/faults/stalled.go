package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"ahprelay/test/load"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
)

// In these rows, many clients read nothing, and a few askers read: these request
// content and send long messages. The relay has little memory.
const (
	stalledMemory = 256 << 20
	stalledTime   = 25 * time.Second
	stalledPause  = 2 * time.Second // longest wait of an asker for an answer

	askers     = 10
	peers      = 3 // askers that connect to the host without the relay
	askSize    = 200_000
	uploadSize = 100_000
	askEvery   = 100 * time.Millisecond

	stalledAsks   = 4        // requests by each client that reads nothing
	stalledBuffer = 16 << 10 // bytes in the receive buffer of such a client's kernel
)

// unlimited is a flag's value that sets no limits for the clients of a party.
const unlimited = "connections=0,pending=0,opens=0"

func stalledRows() (rows []Row) {
	flags := []string{"--limit-address", unlimited, "--limit-subject", unlimited, "--limit-token", unlimited, "--limit-host", unlimited, "--limit-tenant", unlimited}
	for _, n := range []int{600, 1000} {
		rows = append(rows, Row{
			Place: "client–relay", Fault: fmt.Sprintf("%d clients read nothing, 256 MiB", n), memory: stalledMemory, flags: flags,
			promise: unseen.silentAtMost(stalledPause), needs: procs.CanCgroup,
			alone: func(ctx context.Context, s *procs.Site, r *Result) error { return r.stall(ctx, s, n) },
		})
	}
	return rows
}

// stall runs n clients that read nothing, and the askers. It adds the askers' figures
// to the result.
func (r *Result) stall(ctx context.Context, s *procs.Site, n int) error {
	token, err := s.Token()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stalledTime)
	defer cancel()
	var wg sync.WaitGroup
	results, direct := make([]asked, askers), make([]asked, peers)
	for i := range results {
		wg.Go(func() { results[i] = ask(ctx, s.RelayURL(), token, i) })
	}
	for i := range direct {
		wg.Go(func() { direct[i] = ask(ctx, s.HostURL(), token, askers+i) })
	}
	next := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range next {
				stallOne(ctx, &wg, s.RelayURL(), token, i)
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	if err := r.judge(results); err != nil {
		return err
	}
	return r.compare(direct)
}

// stallOne connects a client that requests content and does not read it. The connection
// stays until ctx ends.
func stallOne(ctx context.Context, wg *sync.WaitGroup, url, token string, i int) {
	narrow := &net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, stalledBuffer)
		}), err)
	}}
	transport := &http.Transport{DialContext: narrow.DialContext, DisableKeepAlives: true}
	ws, _, err := websocket.Dial(ctx, url+"?tkn="+token, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		return // while its memory is short, the relay refuses clients
	}
	frames := []string{fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"stalled-%d","protocolVersions":["0.9.0"]}}`, i)}
	for n := range stalledAsks {
		frames = append(frames, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"resourceRead","params":{"channel":"ahp-root://","uri":"demo-blob:/%d"}}`, n+2, askSize+10*i+n))
	}
	for _, frame := range frames {
		if ws.Write(ctx, websocket.MessageText, []byte(frame)) != nil {
			break
		}
	}
	wg.Go(func() {
		<-ctx.Done()
		_ = ws.CloseNow()
	})
}

// An asked is what an asker has measured.
type asked struct {
	waits   []time.Duration // time until the answer to each request
	uploads []time.Duration // time from each long message to the answer to a ping after it
	err     error           // why its connection ended
}

// ask runs an asker until ctx ends. It requests content and waits for the answer. Every
// fifth time, it sends a long message and a ping instead.
func ask(ctx context.Context, url, token string, i int) (a asked) {
	c, err := refclient.Dial(ctx, url, refclient.Options{Token: token, NoRecord: true})
	if err != nil {
		return asked{err: err}
	}
	defer func() { _ = c.Abort() }()
	if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: fmt.Sprint("asker-", i), ProtocolVersions: []string{"0.9.0"}}); err != nil {
		return asked{err: err}
	}
	long := map[string]any{"channel": "ahp-root://", "pad": strings.Repeat("x", uploadSize)}
	for n := 0; ctx.Err() == nil; n++ {
		began := time.Now()
		method, params, times := "resourceRead", map[string]any{"channel": "ahp-root://", "uri": fmt.Sprintf("demo-blob:/%d", askSize-1000*i-n)}, &a.waits
		if n%5 == 4 {
			method, params, times = "ping", map[string]any{"channel": "ahp-root://"}, &a.uploads
			err = c.Notify("x/long", long)
		}
		if err == nil {
			_, err = c.Call(ctx, method, params)
		}
		*times = append(*times, time.Since(began)) // the end of ctx may have cut the last wait short
		if err != nil && ctx.Err() == nil {
			a.err = err
			return a
		}
		load.Pause(ctx, askEvery)
	}
	return a
}

// compare adds the figures of the askers that use the same host without the relay.
func (r *Result) compare(results []asked) error {
	var waits []time.Duration
	for _, a := range results {
		if a.err != nil {
			return fmt.Errorf("an asker without the relay: %w", a.err)
		}
		waits = append(waits, a.waits...)
	}
	if len(waits) == 0 {
		return errors.New("the askers without the relay got no answers")
	}
	r.Note += fmt.Sprintf("; straight at the host: longest %v", slices.Max(waits))
	return nil
}

// judge adds the askers' figures to the result, and reports each asker whose connection
// ended.
func (r *Result) judge(results []asked) error {
	var waits, uploads []time.Duration
	for i, a := range results {
		waits, uploads = append(waits, a.waits...), append(uploads, a.uploads...)
		if a.err != nil {
			r.broken("asker %d was closed: %v", i, a.err)
		}
	}
	for what, list := range map[string][]time.Duration{"answers of 200 KB": waits, "messages of 100 KB": uploads} {
		if len(list) == 0 {
			return fmt.Errorf("the askers have sent and received no %s", what)
		}
		slices.Sort(list)
		last := list[len(list)-1]
		r.Note += fmt.Sprintf("; %d %s: p50 %v, p99 %v, longest %v", len(list), what, list[len(list)/2], list[len(list)*99/100], last)
		r.Pause = max(r.Pause, last)
		r.Sent, r.Received = r.Sent+len(list), r.Received+len(list)
	}
	return nil
}
