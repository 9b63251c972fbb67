package view

import (
	"ahprelay/ahp"
)

// Bounds of messages that come in pieces.
const (
	maxFramed  = 64       // channels with an unfinished message
	maxPieces  = 64 << 20 // bytes of all unfinished messages of a connection
	frameSlack = 64       // bytes that a piece costs beside its text
)

// pieces are the unfinished messages of one direction of a connection, by
// channel: there is one at a time on each.
type pieces struct {
	open   map[string]*piece
	size   int
	broken bool // there was no room for the beginning of one: what begins is not known any more
}

// A piece is the beginning of a message. One for which there is no room is
// lost, up to its end.
type piece struct {
	text []byte
	lost bool
}

// add takes the params of channel/frame. It returns the whole message with its
// last piece, nil before that; lost reports that it is not known.
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

// drop forgets what was begun on a channel.
func (p *pieces) drop(channel string) {
	if one := p.open[channel]; one != nil {
		p.size -= cap(one.text)
		delete(p.open, channel)
	}
}
