// discrete-event simulation: rule.h beside CUBIC
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdbool.h>
#include <math.h>
typedef uint32_t __u32; typedef uint64_t __u64; typedef uint16_t __u16; typedef uint8_t __u8; typedef int32_t __s32; typedef int16_t __s16; typedef int64_t __s64;
#define __always_inline inline __attribute__((always_inline))
#define USEC_PER_SEC 1000000L
#ifndef RULE
#define RULE "/work/yield/bpf/ledbat/rule.h"
#endif
#include RULE
typedef int64_t ns;
#define MS 1000000LL
#define SEC 1000000000LL
#define WIRE 1514
static double LINK=20e6; static ns DELAY=50*MS;
enum q {FIFO50,FIFO100,FIFO250,CODEL,FQ,POLICER,LOSS} Q;
static const char*QN[]={"fifo-50","fifo-100","fifo-250","codel","fq-codel","policer","loss"};
static double rnd(void){static uint64_t s=0;extern uint64_t seed0; if(!s)s=seed0*2654435761u+88172645463325252ULL; s^=s<<13;s^=s>>7;s^=s<<17;return (s>>11)*(1.0/9007199254740992.0);}
uint64_t seed0=1;
/* events */
typedef struct ev{ns t;uint64_t n;int kind,flow,id;long seq;ns a;long b;}ev;
static ev*H;static int hn,hc;static uint64_t en;static ns now;
static bool lt(ev*a,ev*b){return a->t<b->t||(a->t==b->t&&a->n<b->n);}
static void push(ev e){e.n=en++;if(hn==hc){hc=hc?hc*2:1024;H=realloc(H,hc*sizeof*H);}int i=hn++;H[i]=e;while(i&&lt(&H[i],&H[(i-1)/2])){ev t=H[i];H[i]=H[(i-1)/2];H[(i-1)/2]=t;i=(i-1)/2;}}
static ev pop(void){ev r=H[0];H[0]=H[--hn];int i=0;for(;;){int c=2*i+1;if(c>=hn)break;if(c+1<hn&&lt(&H[c+1],&H[c]))c++;if(!lt(&H[c],&H[i]))break;ev t=H[i];H[i]=H[c];H[c]=t;i=c;}return r;}
static int TRACE;
enum{EV_TXDONE,EV_RECV,EV_ACK,EV_DELACK,EV_PACE,EV_TIMER,EV_START,EV_STOP};
/* packets: sent per flow, tx id */
typedef struct{long tx;int flow;ns enq;int bytes;}pk;
typedef struct pkq{pk*b;int h,n,c;long bytes;}pkq;
static void qpush(pkq*q,pk p){if(q->n==q->c){int c=q->c?q->c*2:64;pk*b=malloc(c*sizeof(pk));for(int i=0;i<q->n;i++)b[i]=q->b[(q->h+i)%q->c];free(q->b);q->b=b;q->h=0;q->c=c;}q->b[(q->h+q->n++)%q->c]=p;q->bytes+=p.bytes;}
static pk qpop(pkq*q){pk p=q->b[q->h];q->h=(q->h+1)%q->c;q->n--;q->bytes-=p.bytes;return p;}
/* flow */
typedef struct tx{ns sent;long prior_delivered;ns prior_dt;bool done,lost;int inflight;}tx;
typedef struct flow{
 bool on,lbe,limited;long left; /* packets left to deliver for request; -1 infinite */
 long need; tx*t;long ntx,ctx;long una; /* lowest not done */ long delivered;int inflight;long high; /* highest tx delivered */
 long tosend; double cwnd; double ssthresh; 
 bool rec; long rec_end; double prr_del,prr_out,prr_fs; 
 /* cubic */ double wmax,k,origin; ns epoch; double tcp_cwnd; ns dmin; long round_end; ns round_start,curr,last_ack; int samples; bool hfound;
 struct lbe ca; ns srtt,mdev,minrtt; ns next_send; bool pace_set; double rate;
 /* receiver */ int pend; long pend_tx[64]; uint64_t delack_n; long rcvd_high; int quick;
 ns last_progress; int backoff; bool tlp; uint64_t timer_n;
 /* measure */ double bytes; ns done_at,started;
 long lostev;
}flow;
static flow F[400];static int nf;
static double bins[400][4000]; static int NB=4000;
static struct{ns t;double v;}dummy;
/* bottleneck */
static bool busy;static pkq main_q;static pkq fq_[400];
typedef struct{ns first_above,drop_next;unsigned count,lastcount;bool dropping;}codel;
static codel C[400];static int newl[400],oldl[400],nn,no;static int deficit[400];static bool inlist[400];
static double tokens=60000;static ns tok_t;
static ns ser(int b){return (ns)(b*8e9/LINK);}
static void lose(pk p){ (void)p; }
static long qdrops;
static bool cd_should(codel*c,pk*p,long backlog,ns t){ns s=t-p->enq; if(s<5*MS||backlog<=WIRE){c->first_above=0;return false;} if(!c->first_above){c->first_above=t+100*MS;return false;} return t>=c->first_above;}
static bool codel_deq(codel*c,pkq*q,pk*out){ns t=now;if(!q->n){c->first_above=0;c->dropping=false;return false;}pk p=qpop(q);bool d=cd_should(c,&p,q->bytes,t);
 if(c->dropping){if(!d)c->dropping=false;else while(c->dropping&&t>=c->drop_next){c->count++;lose(p);qdrops++;if(!q->n){c->first_above=0;c->dropping=false;return false;}p=qpop(q);if(!cd_should(c,&p,q->bytes,t))c->dropping=false;else c->drop_next+=(ns)(100*MS/sqrt(c->count));}}
 else if(d){lose(p);qdrops++;bool more=q->n;if(more){p=qpop(q);cd_should(c,&p,q->bytes,t);}else{c->first_above=0;}
  c->dropping=true;unsigned delta=c->count-c->lastcount;if(delta>1&&t-c->drop_next<1600*MS)c->count=delta;else c->count=1;c->lastcount=c->count;c->drop_next=t+(ns)(100*MS/sqrt(c->count));if(!more)return false;}
 *out=p;return true;}
static void start_tx(void);
static void enqueue(pk p){p.enq=now;
 if(Q==LOSS&&rnd()<0.01){lose(p);return;}
 if(Q==POLICER){tokens+=(now-tok_t)*LINK/8e9;tok_t=now;if(tokens>60000)tokens=60000;if(tokens<p.bytes){lose(p);qdrops++;return;}tokens-=p.bytes;push((ev){.t=now,.kind=EV_RECV,.flow=p.flow,.seq=p.tx});return;}
 long lim=Q==FIFO50?125000:Q==FIFO250?625000:250000;
 if(Q==FQ){qpush(&fq_[p.flow],p);if(!inlist[p.flow]){inlist[p.flow]=true;newl[nn++]=p.flow;deficit[p.flow]=1514;}}
 else{ if(Q!=CODEL&&main_q.bytes+p.bytes>lim){lose(p);qdrops++;return;} qpush(&main_q,p);}
 if(!busy)start_tx();}
static void rm(int*l,int*n){memmove(l,l+1,(--*n)*sizeof(int));}
static bool deq(pk*p){
 if(Q==CODEL)return codel_deq(&C[0],&main_q,p);
 if(Q==FQ){for(;;){int isnew=nn>0;if(!nn&&!no)return false;int f=isnew?newl[0]:oldl[0];
  if(deficit[f]<=0){deficit[f]+=1514;if(isnew)rm(newl,&nn);else rm(oldl,&no);oldl[no++]=f;continue;}
  if(!codel_deq(&C[f],&fq_[f],p)){if(isnew){rm(newl,&nn);if(no)oldl[no++]=f;else inlist[f]=false;}else{rm(oldl,&no);inlist[f]=false;}continue;}
  deficit[f]-=p->bytes;return true;}}
 if(!main_q.n)return false;*p=qpop(&main_q);return true;}
static void start_tx(void){pk p;if(!deq(&p)){busy=false;return;}busy=true;push((ev){.t=now+ser(p.bytes),.kind=EV_TXDONE,.flow=p.flow,.seq=p.tx});}
/* sender */
static void timer(flow*f,int i){f->timer_n++;if(!f->inflight)return;ns srtt=f->srtt?f->srtt:DELAY;ns d=f->tlp||f->rec?(srtt+(4*f->mdev>200*MS?4*f->mdev:200*MS))<<f->backoff:2*srtt+(f->inflight==1?200*MS:0);push((ev){.t=now+d,.kind=EV_TIMER,.flow=i,.b=(long)f->timer_n});}
static void send1(flow*f,int i){if(f->ntx==f->ctx){f->ctx=f->ctx?f->ctx*2:256;f->t=realloc(f->t,f->ctx*sizeof(tx));}
 f->t[f->ntx]=(tx){.sent=now,.prior_delivered=f->delivered,.inflight=f->inflight};f->inflight++;enqueue((pk){.tx=f->ntx,.flow=i,.bytes=WIRE});f->ntx++;if(f->tosend>0)f->tosend--;if(f->rec)f->prr_out++;}
static void trysend(flow*f,int i){if(!f->on)return;bool any=false;double w=f->cwnd;
 for(;;){if(f->inflight>=(int)w)break;if(f->tosend==0)break;if(f->lbe&&!any&&w<=4&&f->inflight==(int)w-1)break;
  if(f->rate>0&&f->next_send>now){if(!f->pace_set){f->pace_set=true;push((ev){.t=f->next_send,.kind=EV_PACE,.flow=i});}break;}
  if(f->rate>0)f->next_send=(f->next_send>now?f->next_send:now)+(ns)(1448*1e9/f->rate);
  send1(f,i);any=true;}
 if(any&&f->inflight<=2)timer(f,i);(void)any;}
static unsigned ms(void){return (unsigned)(now/MS)+100000;}
static void lbe_apply(flow*f){struct lbe*ca=&f->ca;__u32 p=greatest(ca->window/PACKET,2);f->cwnd=p;f->rate=0;if(p>4&&f->srtt){int pc=ca->mode==START||ca->mode==RAMP?200:120;f->rate=p*1448.0*1e9/f->srtt*pc/100;}}
static void cubic_acked(flow*f,int acked,ns rtt){
 if(!f->dmin||rtt<f->dmin)f->dmin=rtt;
 if(f->cwnd<f->ssthresh){ /* hystart */
  if(f->high>=f->round_end){f->round_end=f->ntx;f->round_start=now;f->last_ack=now;f->curr=INT64_MAX;f->samples=0;}
  if(f->cwnd>=16){if(now-f->last_ack<=2*MS){f->last_ack=now;if(now-f->round_start>f->dmin/2)f->ssthresh=f->cwnd;}
   if(rtt<f->curr)f->curr=rtt;if(f->samples<8)f->samples++;else{ns th=f->dmin/8;if(th<4*MS)th=4*MS;if(th>16*MS)th=16*MS;if(f->curr>f->dmin+th)f->ssthresh=f->cwnd;}}
  f->cwnd+=acked;return;}
 if(!f->epoch){f->epoch=now;f->tcp_cwnd=f->cwnd;if(f->wmax<=f->cwnd){f->k=0;f->origin=f->cwnd;}else{f->k=cbrt((f->wmax-f->cwnd)/0.4);f->origin=f->wmax;}}
 double t=(now-f->epoch+f->dmin)/1e9;double tg=f->origin+0.4*pow(t-f->k,3);double cnt=tg>f->cwnd?f->cwnd/(tg-f->cwnd):100*f->cwnd;if(f->wmax==0&&cnt>20)cnt=20;
 f->tcp_cwnd+=acked*0.53/f->cwnd; if(f->tcp_cwnd>f->cwnd){double m=f->cwnd/(f->tcp_cwnd-f->cwnd);if(cnt>m)cnt=m;} if(cnt<2)cnt=2;
 f->cwnd+=acked/cnt;}
static void cubic_loss(flow*f){f->epoch=0;f->wmax=f->cwnd<f->wmax?f->cwnd*0.85:f->cwnd;f->ssthresh=f->cwnd*0.7;if(f->ssthresh<2)f->ssthresh=2;}
static void mark_loss(flow*f,long i,int*losses){f->t[i].lost=true;f->inflight--;(*losses)++;f->lostev++;if(f->tosend>=0)f->tosend++;
 if(!f->rec||i>=f->rec_end){ if(!f->rec){f->rec=true;f->rec_end=f->ntx;if(!f->lbe){f->prr_fs=f->cwnd;f->prr_del=f->prr_out=0;cubic_loss(f);}} }}
static void onack(flow*f,int fi,long*txs,int n){ if(!f->on)return; ns rtt=0;int acked=0,losses=0;long pd=0;int prior_inflight=f->inflight; bool out=false;
 for(int k=0;k<n;k++){tx*t=&f->t[txs[k]];if(t->done)continue;t->done=true;if(t->lost){f->delivered++;acked++;continue;}f->inflight--;f->delivered++;acked++;rtt=now-t->sent;pd=t->prior_delivered;if(txs[k]>f->high)f->high=txs[k];}
 if(!acked)return;
 if(f->left>0){f->left-=acked;if(f->left<=0){f->on=false;f->done_at=now;return;}}
 if(rtt){if(!f->srtt){f->srtt=rtt;f->mdev=rtt/2;}else{ns e=rtt>f->srtt?rtt-f->srtt:f->srtt-rtt;f->mdev+=(e-f->mdev)/4;f->srtt+=(rtt-f->srtt)/8;}if(!f->minrtt||rtt<f->minrtt)f->minrtt=rtt;}
 for(long i=f->una;i<=f->high-3;i++){tx*t=&f->t[i];if(!t->done&&!t->lost)mark_loss(f,i,&losses);}
 while(f->una<f->ntx&&(f->t[f->una].done||f->t[f->una].lost))f->una++;
 if(f->rec&&f->high>=f->rec_end){f->rec=false;if(!f->lbe)f->cwnd=f->ssthresh;}
 f->tlp=false;f->backoff=0;(void)out;
 if(f->lbe){struct lbe*ca=&f->ca;if(rtt)note_rtt(ca,rtt/1000,ms());ca->round_lost=least(ca->round_lost+losses,60000);ca->round_delivered=least(ca->round_delivered+acked,60000);
  if((unsigned)prior_inflight*4>=ca->window/PACKET*3)ca->is_limited=1;
  if(ca->is_limited)grow(ca,acked,rtt/1000);
#ifdef NEWRULE
  if(rtt&&n==2&&acked==2)note_pair(ca,rtt/1000,ms());
  if(rtt&&!getenv("NOCUT")&&is_cut_short(ca,rtt/1000,f->mdev/1000,ms())){end_round(ca,f->mdev/1000,ms());ca->round_end=f->delivered;pd=-1;}
#endif
  if(rtt&&(long)(pd-(long)ca->round_end)>=0){if(TRACE>1)printf("%.4f mode %d win %u least %d del %u lost %u infl %d lim %d\n",now/1e9,ca->mode,ca->window/1024,(int)(ca->round_us-ca->base_us),ca->round_delivered,ca->round_lost,f->inflight,ca->is_limited);end_round(ca,f->mdev/1000,ms());ca->round_end=f->delivered;}
  lbe_apply(f);
 }else if(f->rec){f->prr_del+=acked;double snd; if(f->inflight>f->ssthresh)snd=ceil(f->prr_del*f->ssthresh/f->prr_fs)-f->prr_out;else{double l=f->prr_del-f->prr_out;if(l<acked)l=acked;snd=f->ssthresh-f->inflight<l?f->ssthresh-f->inflight:l;}if(snd<0)snd=0;f->cwnd=f->inflight+snd;if(f->cwnd<1)f->cwnd=1;}
 else if(prior_inflight+1>=(int)f->cwnd||f->cwnd<f->ssthresh)cubic_acked(f,acked,rtt?rtt:f->srtt);
 trysend(f,fi);timer(f,fi);}
static void sendack(flow*f,int fi){static long store[1<<20];(void)store;long*c=malloc(sizeof(long)*(f->pend+1));c[0]=f->pend;memcpy(c+1,f->pend_tx,sizeof(long)*f->pend);f->pend=0;f->delack_n++;push((ev){.t=now+DELAY,.kind=EV_ACK,.flow=fi,.a=(ns)(intptr_t)c});}
static void recv_(flow*f,int fi,long seq){int b=(int)(now/(100*MS));if(b<NB)bins[fi][b]+=WIRE;f->bytes+=WIRE;f->pend_tx[f->pend++]=seq;bool ooo=seq!=f->rcvd_high+1;f->rcvd_high=seq;
 if(f->quick>0){f->quick--;}
 if(ooo||f->pend>=2||f->quick>0){if(ooo)f->quick=2;sendack(f,fi);}else push((ev){.t=now+40*MS,.kind=EV_DELACK,.flow=fi,.b=(long)f->delack_n});}
static int newflow(bool lbe,long pkts){int i=nf++;flow*f=&F[i];memset(f,0,sizeof*f);f->lbe=lbe;f->cwnd=10;f->ssthresh=1e9;f->on=true;f->left=pkts;f->tosend=pkts>0?pkts:-1;f->high=-1;f->rcvd_high=-1;f->quick=16;f->started=now;
 if(lbe){begin(&f->ca,10,(unsigned)(DELAY/1000)+60,ms());lbe_apply(f);} trysend(f,i);timer(f,i);return i;}
static void run(ns until);

static void run(ns until){while(hn&&H[0].t<=until){ev e=pop();now=e.t;flow*f=&F[e.flow];switch(e.kind){
 case EV_TXDONE:start_tx();recv_(f,e.flow,e.seq);break;
 case EV_RECV:recv_(f,e.flow,e.seq);break;
 case EV_ACK:{long*c=(long*)(intptr_t)e.a;int m0=f->ca.mode;onack(f,e.flow,c+1,(int)c[0]);free(c);if(TRACE&&f->lbe&&f->ca.mode!=m0)printf("   %.3f f%d mode %d->%d win %u hold %u peak %u lull %u %u\n",now/1e9,e.flow,m0,f->ca.mode,f->ca.window/1024,f->ca.hold_ms,f->ca.peak,f->ca.lull_us[0],f->ca.lull_us[1]);break;}
 case EV_DELACK:if((uint64_t)e.b==f->delack_n&&f->pend)sendack(f,e.flow);break;
 case EV_PACE:f->pace_set=false;trysend(f,e.flow);break;
 case EV_TIMER:if((uint64_t)e.b!=f->timer_n||!f->on||!f->inflight)break;
  if(!f->tlp&&!f->rec){f->tlp=true;if(f->tosend==0)f->tosend=1;double r=f->rate;f->rate=0;send1(f,e.flow);f->rate=r;timer(f,e.flow);break;}
  {int l=0;for(long i=f->una;i<f->ntx;i++){tx*t=&f->t[i];if(!t->done&&!t->lost){t->lost=true;l++;if(f->tosend>=0)f->tosend++;}}f->inflight=0;f->una=f->ntx;f->rec=false;
   if(f->lbe){struct lbe*ca=&f->ca;if(!ca->floor&&ca->mode!=START&&(!ca->trial_left||ca->mode==YIELD))yield(ca,ms());else{if(ca->mode!=RAMP)ca->goal=ca->window/2;ca->window=LEAST;ca->trial_left=0;ramp(ca,ms(),false);}lbe_apply(f);}
   else{cubic_loss(f);f->cwnd=1;}f->backoff++;if(f->backoff>6)f->backoff=6;f->next_send=now;trysend(f,e.flow);timer(f,e.flow);}break;
 }}now=until;}
static double mbit(int f,ns a,ns b){double s=0;for(int i=(int)(a/(100*MS));i<(int)(b/(100*MS))&&i<NB;i++)s+=bins[f][i];return s*8e3/(b-a);}
int main(int c,char**v){ /* sim queue mode seed [trace] */
 for(int i=0;i<7;i++)if(!strcmp(QN[i],v[1]))Q=i;char m=v[2][0];seed0=atoi(v[3]);TRACE=c-4;
 double ph=rnd();
 if(m=='p'){int a=newflow(true,-1);run(5*SEC+(ns)(ph*SEC));int b=newflow(true,-1);ns s=now;run(s+120*SEC);double x=mbit(a,s,now),y=mbit(b,s,now);printf("%s pair %.2f %.2f ratio %.3f\n",QN[Q],x,y,x<y?x/y:y/x);return 0;}
 int bg=-1;now=0;if(m=='b')bg=newflow(true,-1);
 run(15*SEC+(ns)(ph*SEC));ns s=now;double alone=bg>=0?mbit(bg,5*SEC,s):0;
 int fg=newflow(false,-1);run(s+20*SEC);double fgm=mbit(fg,s,now),bgm=bg>=0?mbit(bg,s,now):0;double steady=mbit(fg,s+5*SEC,now);
 double ys=0;if(bg>=0){int k=(int)(s/(100*MS));int last=k;for(int i=k;i<k+200;i++){double w=0;int n=0;for(int j=i;j<i+3;j++){w+=bins[bg][j];n++;}if(w*8/n/1e5<0.05*LINK/1e6)break;last=i+1;}ys=(last-k)*0.1;}
 F[fg].on=false;ns e=now;run(e+8*SEC);double ret=-1;if(bg>=0)for(int i=(int)(e/(100*MS));i<(int)(now/(100*MS));i++)if(mbit(bg,i*100*MS,(i+5)*100*MS)>10){ret=(i-(e/(100*MS)))*0.1;break;}
 double sum=0;int n=20;ns r0=now;for(int i=0;i<n;i++){run(r0+i*SEC);int r=newflow(false,70);ns b=now;run(b+SEC);double d=F[r].done_at?(F[r].done_at-b)/1e9:1.0;if(!F[r].done_at){F[r].on=false;}sum+=d+0.05;}
 printf("%s %c fg %.2f steady %.2f bg_alone %.2f bg_beside %.2f yield %.1f return %.1f req %.4f\n",QN[Q],m,fgm,steady,alone,bgm,ys,ret,sum/n);
 return 0;}
