package view

import (
	"ahprelay/ahp"
)

// Bounds for messages in frames.
const (
	maxFramed  = 64       // channels with an unfinished message
	maxPieces  = 64 << 20 // bytes of all unfinished messages of a connection
	frameSlack = 64       // counted for each frame in addition to its text
)

// pieces are a connection's unfinished messages in one direction, at most one for each
// channel.
type pieces struct {
	open   map[string]*piece
	size   int
	broken bool // a message's beginning was lost, so a later frame may be in the middle of a message
}

// A piece is the beginning of a message. If there is no room for it, the message is
// lost up to its end.
type piece struct {
	text []byte
	lost bool
}

// add adds the params of a channel/frame. With a message's last frame, it returns the
// whole message. lost is true if a message could not be kept.
func (p *pieces) add(params []byte) (whole []byte, lost bool) {
	m := [...]ahp.Member{{Name: "channel"}, {Name: "data"}, {Name: "final"}}
	if ahp.Members(params, m[:]) != nil || m[1].Raw == nil {
		return nil, false
	}
	channel, _ := ahp.Text(m[0].Raw)
	data, ok := ahp.Text(m[1].Raw)
	one := p.open[channel]
	if one == nil {
		if p.broken = p.broken || len(p.open) >= maxFramed; p.broken {
			return nil, true
		}
		if p.open == nil {
			p.open = map[string]*piece{}
		}
		one = new(piece)
		p.open[channel] = one
	}
	if cost := len(data) + frameSlack; !ok || one.lost || p.size+cost > maxPieces {
		p.size -= cap(one.text)
		one.text, one.lost = nil, true
	} else {
		p.size -= cap(one.text)
		one.text = append(one.text, data...)
		p.size += cap(one.text)
	}
	if string(m[2].Raw) != "true" {
		return nil, one.lost
	}
	p.drop(channel)
	return one.text, one.lost
}

func (p *pieces) drop(channel string) {
	if one := p.open[channel]; one != nil {
		p.size -= cap(one.text)
		delete(p.open, channel)
	}
}
