package ahp

// A Level is an access level. Each level includes the levels before it.
type Level string

// The levels, in order.
const (
	Look    Level = "look"    // changes nothing
	Talk    Level = "talk"    // messages to agents, and answers to their questions
	Approve Level = "approve" // decisions about an agent's tool calls
	Operate Level = "operate" // everything else at the host
	Own     Level = "own"     // also sharing the host
)
