package loadgen

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// A caller sends requests one after another, and waits for each response. It answers
// pings between the calls of [Clients.Call] too, because a relay closes a connection
// that leaves three pings unanswered.
type caller struct {
	*wsConn
	lastID int
	rested chan error // receives the result of a rest
}

// DialArgs describes callers to connect.
type DialArgs struct {
	Group   string // name of the new group
	URL     string
	Tokens  []string // used in turn; none: callers have no token
	Callers int
	Seal    *Seal // for a sealed host; nil: the host is not sealed
}

// Dial connects a group of callers.
func (c *Clients) Dial(args DialArgs, _ *None) error {
	list := make([]*caller, args.Callers)
	var all errgroup.Group
	all.SetLimit(connectors)
	for i := range list {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), dialTime)
			defer cancel()
			ws, err := dialWS(ctx, args.URL, TokenOf(args.Tokens, i), args.Seal)
			if err != nil {
				return err
			}
			err = greet(ws, fmt.Sprintf("%s-%d", args.Group, i), "")
			if err = cmp.Or(err, ws.SetDeadline(time.Time{})); err != nil {
				return errors.Join(err, ws.Close())
			}
			list[i] = &caller{wsConn: ws, lastID: 1000, rested: make(chan error, 1)}
			list[i].rest()
			return nil
		})
	}
	err := all.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.callers[args.Group] != nil {
		err = fmt.Errorf("a group %s of callers exists already", args.Group)
	}
	if err != nil {
		for _, caller := range list {
			if caller != nil {
				_ = caller.Close()
			}
		}
		return err
	}
	c.callers[args.Group] = list
	return nil
}

// CallArgs describes the requests of a group of callers.
type CallArgs struct {
	Group   string
	Request int // length of a request in bytes
	Answer  int // length of a response in bytes
	For     time.Duration
	Every   time.Duration // time between a caller's requests; 0: no pause
}

// CallReply has the delays of all requests.
type CallReply struct {
	Delays Delays
	Took   time.Duration // duration of the whole call
}

// Call makes all callers of a group send requests, and checks the responses.
func (c *Clients) Call(args CallArgs, reply *CallReply) error {
	c.mu.Lock()
	list := c.callers[args.Group]
	c.mu.Unlock()
	if list == nil {
		return fmt.Errorf("no group %q of callers exists", args.Group)
	}
	for _, caller := range list {
		defer caller.rest()
		if err := caller.wake(); err != nil {
			return err
		}
	}
	began := time.Now()
	var mu sync.Mutex
	var delays []time.Duration
	var all errgroup.Group
	for i, caller := range list {
		all.Go(func() error {
			if args.Every > 0 { // spreads the callers' requests over the time
				time.Sleep(args.Every * time.Duration(i) / time.Duration(len(list)))
			}
			own, err := caller.callFor(&args)
			mu.Lock()
			defer mu.Unlock()
			delays = append(delays, own...)
			return err
		})
	}
	err := all.Wait()
	*reply = CallReply{Delays: Summary(delays), Took: time.Since(began)}
	return err
}

// rest answers pings until wake.
func (c *caller) rest() {
	go func() {
		_, _, err := c.peek()
		c.rested <- err
	}()
}

// wake ends a rest. It returns an error if the connection has ended.
func (c *caller) wake() error {
	_ = c.SetReadDeadline(time.Now()) // fails if the connection has ended, as the rest then does
	if err := <-c.rested; err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return c.SetReadDeadline(time.Time{})
}

func (c *caller) callFor(args *CallArgs) (delays []time.Duration, err error) {
	began := time.Now()
	for next := began; len(delays) == 0 || time.Since(began) < args.For; {
		sent := time.Now()
		if err := c.call(args); err != nil {
			return delays, err
		}
		delays = append(delays, time.Since(sent))
		if args.Every > 0 {
			next = next.Add(args.Every)
			time.Sleep(time.Until(next))
		}
	}
	return delays, nil
}

func (c *caller) call(args *CallArgs) error {
	c.lastID++
	id := strconv.Itoa(c.lastID)
	const pad = 2 + len(`,"pad":`)
	request := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"resourceRead","params":{"channel":"ahp-root://","uri":%q`, id, ResourceURI(args.Answer))
	if room := args.Request - len(request) - pad - 2; room > 0 {
		request = fmt.Appendf(request, `,"pad":"%s"`, corpus()[:room])
	}
	request = append(request, `}}`...)
	if err := c.say(request); err != nil {
		return err
	}
	answer, err := c.message()
	if err != nil {
		return err
	}
	return checkAnswer(answer, id, args.Answer)
}

// checkAnswer compares a response with the response that the host must send.
func checkAnswer(answer []byte, id string, size int) error {
	head, tail, left, err := answerParts([]byte(id), size)
	if err != nil {
		return err
	}
	if len(answer) != size || string(answer[:len(head)]) != head || string(answer[len(head)+left:]) != tail {
		return fmt.Errorf("the answer to request %s has %d bytes and begins with %.200q; want %d", id, len(answer), answer, size)
	}
	all := corpus()
	for data := answer[len(head) : len(head)+left]; len(data) > 0; {
		n := min(len(data), len(all))
		if !bytes.Equal(data[:n], all[:n]) {
			return fmt.Errorf("the answer to request %s is changed", id)
		}
		data = data[n:]
	}
	return nil
}
