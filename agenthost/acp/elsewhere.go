package acp

import (
	"context"
	"regexp"
	"slices"
	"time"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
)

// Agents do not report that a conversation is also open in their own terminal. Their
// lists of conversations contain the time of the latest change, so a change between two
// prompts was made elsewhere. The process here has not seen it, and its next prompt
// would start a second branch of the conversation. The times are compared only within
// one process: a new process reads the whole conversation, and some agents still write
// when they end.
const (
	// lateTime is how long an agent may still write after the end of its turn.
	lateTime = 15 * time.Second

	// lookTime bounds the wait for the agent's list.
	lookTime = 2 * time.Second
)

// busyPattern matches errors with which agents refuse a conversation that is open
// elsewhere.
var busyPattern = regexp.MustCompile(`(?i)already (open|running|active|in use)|\b(locked|in use|opened) (by|in|elsewhere)\b|another (process|client|instance)`)

// passingPattern matches errors that pass: the network, a service or a disk does not work at the moment.
var passingPattern = regexp.MustCompile(`(?i)time(d )?.?out|network|connection|socket|fetch failed|\bE(CONN|PIPE|AI_|NOTFOUND|NET|HOST|MFILE|NOSPC|ACCES|BUSY|AGAIN)|` +
	`no space|temporar|unavailable|overloaded|rate.?limit|too many|try again|\b(429|50[0-4]|529)\b`)

// lostPattern matches errors of agents that no longer have a conversation, whatever else they name.
var lostPattern = regexp.MustCompile(`(?i)not found|no such|does not exist`)

// passes reports whether an agent that cannot open a conversation may do so later. Only some agents have a code for a
// missing conversation.
func passes(err *acp.Error) bool {
	return err.Code != acp.CodeNotFound && !lostPattern.MatchString(err.Error()) && passingPattern.MatchString(err.Error())
}

// changedElsewhere reports whether a conversation has changed elsewhere since rested,
// the end of its latest prompt. It returns false if the agent cannot continue
// conversations, or does not list them.
func (p *peer) changedElsewhere(ctx context.Context, folder, id string, rested time.Time) bool {
	if rested.IsZero() || p.can.SessionCapabilities.Resume == nil && !p.can.LoadSession {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	list, _ := p.list(ctx, folder) // without a list, no change is known
	return slices.ContainsFunc(list, func(past agenthost.Past) bool {
		return past.ID == id && past.Modified.After(rested.Add(lateTime))
	})
}
