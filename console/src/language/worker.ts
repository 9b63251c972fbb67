// The texts of the service worker. It needs few texts and loads no catalogue.

/** The texts in one language. says has a text for each kind of event, about a session or host. */
export interface Texts {
  anAgent: string; renewed: string; sending: (label: string) => string; notAnswered: (why: string) => string; unreachable: string; unproved: string; answered: (status: number) => string;
  says: Record<string, (of: string) => string>;
  labels: Record<string, string>; // of answers whose names come from the relay or the host-agent, not from the host
}

export const texts: Record<string, Texts> = {
  en: {
    anAgent: 'An agent needs you', renewed: 'Open this page once, so that notifications go on', sending: (label) => `Sending: ${label}…`, notAnswered: (why) => `Not answered: ${why}`,
    unreachable: 'the relay cannot be reached', unproved: 'the host has not confirmed it', answered: (status) => `the relay answered ${status}`,
    says: {}, labels: {}, // the relay's own texts
  },
  de: {
    anAgent: 'Ein Agent braucht Sie', renewed: 'Öffnen Sie diese Seite einmal, damit Benachrichtigungen weiter ankommen', sending: (label) => `Wird gesendet: ${label} …`, notAnswered: (why) => `Nicht beantwortet: ${why}`,
    unreachable: 'das Relay ist nicht erreichbar', unproved: 'der Host hat es nicht bestätigt', answered: (status) => `das Relay hat ${status} geantwortet`,
    says: {
      approval: (of) => `${of}: bittet um Ihre Erlaubnis`, question: (of) => `${of}: fragt Sie etwas`, signIn: (of) => `${of}: Sie müssen sich anmelden`, input: (of) => `${of}: braucht Sie`,
      done: (of) => `${of}: ist fertig`, failed: (of) => `${of}: ist gescheitert`, offline: (of) => `${of}: ist nicht erreichbar`, joined: (of) => `${of}: jemand sieht zu`, test: (of) => `${of}: dies ist ein Test`,
    },
    labels: { Reply: 'Antworten', Allow: 'Erlauben', 'Allow once': 'Einmal erlauben', Deny: 'Ablehnen', Skip: 'Überspringen' },
  },
  ja: {
    anAgent: 'エージェントが対応を待っています', renewed: '通知を続けるには、このページを一度開いてください', sending: (label) => `送信中: ${label}…`, notAnswered: (why) => `回答できませんでした: ${why}`,
    unreachable: 'リレーに接続できません', unproved: 'ホストが確認していません', answered: (status) => `リレーの応答: ${status}`,
    says: {
      approval: (of) => `${of}: 許可を求めています`, question: (of) => `${of}: 質問があります`, signIn: (of) => `${of}: サインインが必要です`, input: (of) => `${of}: 対応が必要です`,
      done: (of) => `${of}: 完了しました`, failed: (of) => `${of}: 失敗しました`, offline: (of) => `${of}: 接続できません`, joined: (of) => `${of}: 閲覧されています`, test: (of) => `${of}: これはテストです`,
    },
    labels: { Reply: '返信', Allow: '許可', 'Allow once': '今回だけ許可', Deny: '拒否', Skip: 'スキップ' },
  },
  ar: {
    anAgent: 'يحتاجك وكيل', renewed: 'افتح هذه الصفحة مرة واحدة كي تستمر الإشعارات', sending: (label) => `جارٍ الإرسال: ${label}…`, notAnswered: (why) => `لم تُرسل الإجابة: ${why}`,
    unreachable: 'يتعذّر الوصول إلى المُرحِّل', unproved: 'لم يؤكّد المضيف ذلك', answered: (status) => `أجاب المُرحِّل بـ ${status}`,
    says: {
      approval: (of) => `${of}: يطلب إذنك`, question: (of) => `${of}: يسألك سؤالًا`, signIn: (of) => `${of}: يتطلب تسجيل دخولك`, input: (of) => `${of}: يحتاجك`,
      done: (of) => `${of}: انتهى`, failed: (of) => `${of}: فشل`, offline: (of) => `${of}: يتعذّر الوصول إليه`, joined: (of) => `${of}: يشاهده شخص`, test: (of) => `${of}: هذه تجربة`,
    },
    labels: { Reply: 'رد', Allow: 'سماح', 'Allow once': 'سماح مرة واحدة', Deny: 'رفض', Skip: 'تخطٍّ' },
  },
};

/**
 * Returns the line of a notification. The relay writes it in English; in other languages it is built from the
 * notification's members.
 */
export function saysIn(language: string, told: Record<string, unknown>): string {
  const text = (value: unknown) => (typeof value === 'string' ? value : '');
  const about = told.kind === 'test' ? text(told.says).split(': ')[0] : text(told.host);
  return texts[language]?.says[text(told.kind)]?.(about) ?? text(told.says);
}
