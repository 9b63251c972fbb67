package gateway

import (
	"slices"

	"ahprelay/ahp"
)

// pendingMessages are those of a client that wait for a connection to its host. The client's lock guards them.
type pendingMessages struct {
	budget *budget
	list   [][]byte
	bytes  int // of list
}

// add keeps a copy of a message.
func (p *pendingMessages) add(message []byte) {
	p.list = append(p.list, append([]byte(nil), message...))
	p.count(len(message))
}

// count notes that n bytes more wait.
func (p *pendingMessages) count(n int) {
	p.bytes += n
	p.budget.add(n)
}

// clear forgets all.
func (p *pendingMessages) clear() {
	p.count(-p.bytes)
	p.list = nil
}

// answerPings answers those that are pings, and forgets them.
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
