package gateway

import (
	"slices"

	"ahprelay/ahp"
)

// pendingMessages holds a client's messages until the connection to the host is open. The
// client's lock guards it.
type pendingMessages struct {
	budget *budget
	list   [][]byte
	bytes  int
}

func (p *pendingMessages) add(message []byte) {
	p.list = append(p.list, append([]byte(nil), message...))
	p.count(len(message))
}

func (p *pendingMessages) count(n int) {
	p.bytes += n
	p.budget.add(n)
}

func (p *pendingMessages) clear() {
	p.count(-p.bytes)
	p.list = nil
}

func (p *pendingMessages) answerPings(answer func(message []byte)) {
	p.list = slices.DeleteFunc(p.list, func(message []byte) bool {
		env, err := ahp.Peek(message)
		if err != nil || !isPing(&env) {
			return false
		}
		answer(ahp.AppendResult(nil, env.ID, nil))
		p.count(-len(message))
		return true
	})
}
