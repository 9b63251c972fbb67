package notify

import (
	"context"
	"sync"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/notify"
)

// Config is what an [API] is given.
type Config struct {
	Caller   *authn.Checker
	Board    *notify.Board // the events
	Instance string        // the name of this run of the relay

	// Standing returns what a token that has set a way may hear and do now, and whether it
	// still may anything.
	Standing func(who auth.Client) (auth.Client, bool)

	Life context.Context // ends with the server
}

// An API tells events, sees to how people are told of them, and takes their answers.
type API struct {
	Config
	streams streams
	over    chan struct{} // closed when streams of events are to end
	ending  sync.Once     // for over

	teller *notify.Teller // nil: nobody is told
	answer func(context.Context, notice.Answer) (notice.Outcome, error)
	follow func(ctx context.Context, tenant string) (release func())
}

// New returns an API that tells nobody but those who follow events.
func New(cfg Config) *API {
	return &API{Config: cfg, streams: streams{of: map[[2]string]int{}}, over: make(chan struct{})}
}

// Start has people told, and their answers given to hosts. It is called before anything
// is served. Follow has other relays say what is open there, until it is released.
func (a *API) Start(teller *notify.Teller, answer func(context.Context, notice.Answer) (notice.Outcome, error), follow func(ctx context.Context, tenant string) (release func())) {
	a.teller, a.answer, a.follow = teller, answer, follow
}
