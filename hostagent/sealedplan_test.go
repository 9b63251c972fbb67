package hostagent

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
	"ahprelay/test/membus"
)

// A planned is a client in a random plan.
type planned struct {
	*sharedReader
	seal   *sealing
	said   []string // the host's messages on the client's connection
	asked  []string // the client's messages
	ticket string   // of the move that has begun; "": none
	left   bool     // the move's former line has ended
}

// A sealedPlan is a sealed host with clients to which random events happen.
type sealedPlan struct {
	*world
	rng     *rand.Rand
	clients []*planned
	relays  []*routing.RelayEnd
	nets    []*membus.Net   // between the host-agent and each relay
	down    *membus.Net     // loses all messages at present; nil: none
	barred  map[uint32]bool // epochs of keys that a removed device has
	steps   []string
	n       int
}

// TestRandomPlansOfASealedHost plays random plans: host and clients send short and long messages, while
// clients come, go, unsubscribe and change relays, devices are removed, and networks break for seconds.
// Each client must get exactly its messages, once and in order, and so must the host. No shared message
// after a removal may have keys that the removed device has.
func TestRandomPlansOfASealedHost(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorldOf(t, routing.AgentEndConfig{Sealed: true}, func(w *world) {
				w.host.set(func() { w.host.answers = nil })
				p := &sealedPlan{world: w, rng: rand.New(rand.NewPCG(seed+1, 7)), barred: map[uint32]bool{}}
				p.relays, p.nets = []*routing.RelayEnd{w.relay}, []*membus.Net{w.bus}
				for _, name := range []string{"relay2", "relay3"} {
					p.relays = append(p.relays, w.link(w.life, name))
					p.nets = append(p.nets, w.bus)
				}
				defer func() {
					if t.Failed() {
						t.Logf("the plan: %s", strings.Join(p.steps, "; "))
					}
				}()
				for range 3 {
					p.comes()
				}
				for range 60 {
					p.step()
				}
				p.ends()
			})
		})
	}
}

func (p *sealedPlan) note(format string, args ...any) {
	p.steps = append(p.steps, fmt.Sprintf(format, args...))
}

// step lets one event happen, and then checks what has arrived.
func (p *sealedPlan) step() {
	p.Helper()
	i := p.rng.IntN(len(p.clients))
	c := p.clients[i]
	switch event := p.rng.IntN(22); {
	case event < 8:
		p.hostSays()
	case event < 11 && !c.left:
		p.asks(c)
	case event < 13:
		p.passes()
	case event < 16:
		p.moves(c)
	case event == 16 && !c.left:
		c.unsubscribes()
		c.asked = append(c.asked, `{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"s:/1"}}`)
	case event == 17 && len(p.clients) < 7 && p.down != p.nets[0]:
		p.comes()
	case event == 18 && len(p.clients) > 2 && p.down == nil:
		p.removes(i)
	case event == 19 && len(p.clients) > 2 && !c.left && p.down == nil:
		p.goes(i)
	case event == 20 && p.down == nil:
		p.down = p.nets[p.rng.IntN(len(p.nets))]
		p.down.Lose(func(string) bool { return true })
		p.note("network %d breaks", slices.Index(p.nets, p.down))
	case event > 17:
		p.returns()
	}
	if p.rng.IntN(3) > 0 {
		time.Sleep(10 * time.Millisecond) // a link waits for more references
		p.check()
	}
}

// text returns a text of random length, up to a few records.
func (p *sealedPlan) text() string {
	p.n++
	return fmt.Sprint(p.n, strings.Repeat("x", []int{10, 10, 10, 5000, 40_000}[p.rng.IntN(5)]))
}

func (p *sealedPlan) comes() {
	c := &planned{sharedReader: p.openReader(vaultDevice{Level: []auth.Access{auth.AccessWrite, auth.AccessWrite, auth.AccessTalk}[p.rng.IntN(3)]}, p.rng.IntN(5) == 0)}
	c.seal = c.hostEnd().conn.seal
	p.clients = append(p.clients, c)
	p.note("%s comes", c.device)
}

// hostSays makes the host send a notification on some connections.
func (p *sealedPlan) hostSays() {
	message := fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":"s:/%d","n":%q}}`, p.rng.IntN(2)+1, p.text())
	all := p.rng.IntN(3) > 0
	for _, c := range p.clients {
		if all || p.rng.IntN(2) > 0 {
			c.sock.toUs <- message
			c.said = append(c.said, message)
		}
	}
	p.note("host says %d bytes", len(message))
}

// asks sends a request from the client. The host answers half of the requests, each with the same state.
func (p *sealedPlan) asks(c *planned) {
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"subscribe","params":{"channel":"s:/1"}}`, p.text())
	c.asked = append(c.asked, message)
	c.post(sealed.Message, message)
	p.note("%s asks %d bytes", c.device, len(message))
	if p.rng.IntN(2) > 0 {
		env, err := ahp.Peek([]byte(message))
		if err != nil {
			p.Fatal(err)
		}
		answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"snapshot":{"resource":"s:/1","fromSeq":0,"state":{"text":"%s"}}}}`, env.ID, strings.Repeat("state ", 1000))
		c.sock.toUs <- answer
		c.said = append(c.said, answer)
	}
}

// passes lets time pass.
func (p *sealedPlan) passes() {
	for _, c := range p.clients {
		if !c.left {
			c.post(sealed.Heartbeat, string(sealed.AppendHeartbeat(c.session.Opened())))
		}
	}
	d := []time.Duration{10 * time.Millisecond, time.Second, 3 * time.Second, 6 * time.Second, 40 * time.Second}[p.rng.IntN(5)]
	if p.down != nil && d > time.Second { // a break of up to 15 s is only a pause
		d = 3 * time.Second
		defer p.returns()
	}
	time.Sleep(d)
	p.note("%v", d)
}

// moves takes the client's next step to another relay.
func (p *sealedPlan) moves(c *planned) {
	p.n++
	switch {
	case c.ticket == "":
		c.ticket = fmt.Sprint("ticket-", p.n)
		c.conn.Move(routing.Move{Ticket: c.ticket, Until: time.Now().Add(time.Hour), Holder: auth.Holder{Token: "t"}})
		p.note("%s begins to move", c.device)
	case !c.left:
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if !c.moved && p.down == nil {
			p.Fatalf("%s: the host-agent does not keep the connection; closed with %d %q", c.device, c.code, c.reason)
		}
		if !c.moved {
			return
		}
		c.conn.Close(ahp.CloseShuttingDown, "")
		c.left = true
		p.note("%s leaves its relay", c.device)
	default:
		c.hear()
		next := &sealedRemote{w: p.world, session: c.session, device: c.device}
		to := p.rng.IntN(len(p.relays))
		conn, err := p.relays[to].Open(routing.Open{ID: c.ticket, Subject: "eve", Access: "admin", Sealed: true, Ticket: c.ticket}, next)
		if err != nil {
			p.Fatal(err)
		}
		next.conn = conn
		synctest.Wait()
		if !next.opened { // a client sends nothing before
			p.returns()
		}
		c.sealedRemote, c.ticket, c.left = next, "", false
		p.note("%s arrives at relay %d", c.device, to)
	}
}

// returns ends the break of a network.
func (p *sealedPlan) returns() {
	if p.down == nil {
		return
	}
	p.down.Lose(nil)
	p.down = nil
	time.Sleep(10 * time.Second) // the lost packets are sent again
	p.note("the network returns")
}

// removes removes the client's device.
func (p *sealedPlan) removes(i int) {
	c := p.clients[i]
	time.Sleep(10 * time.Millisecond)
	p.check()
	p.note("%s is removed", c.device)
	p.clients = slices.Delete(p.clients, i, i+1)
	c.removed()
	c.seal.mu.Lock()
	for _, epoch := range c.seal.epochs {
		p.barred[epoch] = true
	}
	c.seal.mu.Unlock()
	c.hear()
	if p.down == nil && c.ticket == "" && !slices.Equal(c.got, c.said) {
		p.Errorf("a client that was removed got %d messages; want %d", len(c.got), len(c.said))
	}
}

// goes ends the client's connection.
func (p *sealedPlan) goes(i int) {
	c := p.clients[i]
	p.note("%s goes", c.device)
	p.clients = slices.Delete(p.clients, i, i+1)
	c.conn.Close(1000, "")
}

// check fails unless each client got the first of its messages, in order, and all of them while its
// network works.
func (p *sealedPlan) check() {
	p.Helper()
	for _, c := range p.clients {
		heard := len(c.bodies)
		c.hear()
		if len(c.got) > len(c.said) || !slices.Equal(c.got, c.said[:len(c.got)]) {
			p.Fatalf("%s got %.300q; want the first of %.300q", c.device, c.got, c.said)
		}
		if p.down == nil && c.ticket == "" && len(c.got) != len(c.said) {
			p.Fatalf("%s got %d messages; want %d; closed with %d %q", c.device, len(c.got), len(c.said), c.code, c.reason)
		}
		for _, body := range c.bodies[heard:] {
			if epoch := binary.BigEndian.Uint32(body[1:]); p.barred[epoch] {
				p.Errorf("%s got a body with the keys of epoch %d, which a removed device has", c.device, epoch)
			}
		}
		if got := c.sock.messages(); len(got) > len(c.asked) || !slices.Equal(got, c.asked[:len(got)]) || p.down == nil && len(got) < len(c.asked) {
			p.Fatalf("the host got %.300q from %s; want %.300q", got, c.device, c.asked)
		}
	}
}

// ends lets all clients arrive, and checks that nothing is missing.
func (p *sealedPlan) ends() {
	p.Helper()
	p.returns()
	for _, c := range p.clients {
		for c.ticket != "" {
			p.moves(c)
		}
	}
	p.hostSays()
	time.Sleep(time.Second)
	p.check()
}
