package scale

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
)

// Roles are the roles with which measurements start the program again: see
// [loadgen.Main].
var Roles = map[string]any{helperRole: Helper{}}

const helperRole = "Helper"

// A Helper works in a process of its own, so that a measurement does not count the work,
// and its garbage is not collected together with that of the relays.
type Helper struct{}

// Fleet starts a fleet, which ends with the process.
func (Helper) Fleet(f Fleet, _ *loadgen.None) error {
	inBackground(f.Run)
	return nil
}

// Agents starts host-agents, which end with the process.
func (Helper) Agents(a Agents, _ *loadgen.None) error {
	inBackground(a.Run)
	return nil
}

func inBackground(run func(context.Context) error) {
	go func() {
		if err := run(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
}

// A Joiner is a relay that joins a running cluster.
type Joiner struct {
	Dir    string   // the cluster's
	Routes []string // addresses at which the cluster's relays listen for each other
	Relays int      // number of these relays
	Hosts  int
}

// Join adds the relay to the cluster, and returns when it knows the hosts.
func (Helper) Join(j Joiner, _ *loadgen.None) error {
	c, err := runningCluster(j.Dir, j.Routes, j.Relays, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return c.joinAndKnow(context.Background(), j.Hosts)
}

// help calls a method of a Helper in a new process. stop ends the process, as the end of
// ctx does.
func help(ctx context.Context, dir, method string, args any) (stop func()) {
	p := must.Get(loadgen.Start(dir, "helper", helperRole, 0))
	ended := context.AfterFunc(ctx, p.Close)
	stop = func() {
		if ended() {
			p.Close()
		}
	}
	defer must.Undo(stop)
	must.Do(p.Call(helperRole+"."+method, args, &loadgen.None{}))
	return stop
}

// fleet starts the host-agents of so many hosts at a cluster.
func (s *Plan) fleet(ctx context.Context, c *Cluster, hosts int) (stop func()) {
	return help(ctx, c.dir, "Fleet", Fleet{KeyDir: keyDir(c.dir), URLs: c.urls(), Hosts: hosts, Renew: cmp.Or(s.Renew, 5*time.Second)})
}
