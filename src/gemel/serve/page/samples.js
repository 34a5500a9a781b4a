// Texts for a first visit: a few themes, and pairs that say the same in other words.

export const QUERY = "someone making music";

export const TEXTS = [
  "A man is playing a guitar on the stage.",
  "Someone plays an acoustic guitar in front of people.",
  "A woman is singing with a band.",
  "The choir rehearses every Thursday evening.",
  "A child practises the piano after school.",
  "How do I reset my password?",
  "I forgot my password and cannot log in.",
  "The app asks me to sign in again and again.",
  "Where can I change the e-mail address of my account?",
  "My invoice shows the wrong amount.",
  "I was charged twice for the same order.",
  "When will I get my money back?",
  "Heavy rain is expected in the north tomorrow.",
  "Tomorrow it will pour in the northern regions.",
  "A cold wind blows from the sea.",
  "The heat wave will last until Sunday.",
  "Slice the onions and fry them in butter.",
  "Cut the onions and cook them gently in butter.",
  "Let the dough rest for an hour before baking.",
  "Add a pinch of salt to the soup.",
  "The team won the final after extra time.",
  "They became champions in overtime.",
  "The goalkeeper saved two penalties.",
  "She ran the marathon in under three hours.",
];

export const COMPARED = ["A man plays a guitar on the stage.", "Someone is playing an instrument."];
